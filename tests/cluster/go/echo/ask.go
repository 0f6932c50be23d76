// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// get asks over a new connection each time, so that each answer is a new choice of the balancer.
func get(arguments []string) error {
	flags := flag.NewFlagSet("get", flag.ExitOnError)
	timeout := flags.Duration("timeout", 5*time.Second, "of one request")
	times := flags.Int("times", 1, "how many requests")
	_ = flags.Parse(arguments)
	client := newClient(*timeout, false)
	for range *times {
		body, err := fetch(client, flags.Arg(0))
		if err != nil {
			return err
		}
		fmt.Print(body)
	}
	return nil
}

func newClient(timeout time.Duration, keep bool) *http.Client {
	return &http.Client{
		Timeout:   timeout,
		Transport: &http.Transport{DisableKeepAlives: !keep, MaxConnsPerHost: 1},
	}
}

func fetch(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(body), err
}

// post sends bytes to a server that returns them, to see that both ways carry full packets.
func post(arguments []string) error {
	flags := flag.NewFlagSet("post", flag.ExitOnError)
	timeout := flags.Duration("timeout", 5*time.Second, "of the request")
	size := flags.Int("size", 200_000, "how many bytes")
	_ = flags.Parse(arguments)
	sent := bytes.Repeat([]byte("0123456789"), *size/10)
	url := flags.Arg(0) + "/echo"
	response, err := newClient(*timeout, false).Post(url, "text/plain", bytes.NewReader(sent))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	returned, err := io.ReadAll(response.Body)
	if err == nil && !bytes.Equal(sent, returned) {
		err = fmt.Errorf("%d of %d bytes came back as they were", len(returned), len(sent))
	}
	return err
}

func askUDP(arguments []string) error {
	flags := flag.NewFlagSet("udp", flag.ExitOnError)
	timeout := flags.Duration("timeout", 5*time.Second, "until the answer must be there")
	size := flags.Int("size", 4, "bytes of the question, and the least of the answer")
	_ = flags.Parse(arguments)
	connection, err := net.Dial("udp", flags.Arg(0))
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(*timeout)); err != nil {
		return err
	}
	if _, err := connection.Write(padded([]byte("who\n"), *size)); err != nil {
		return err
	}
	buffer := make([]byte, 65536)
	length, err := connection.Read(buffer)
	fmt.Print(string(buffer[:length]))
	return err
}

func lookup(arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("lookup needs one name")
	}
	addresses, err := net.LookupHost(arguments[0])
	for _, address := range addresses {
		fmt.Println(address)
	}
	return err
}
