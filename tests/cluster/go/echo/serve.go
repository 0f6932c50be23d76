// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// answer is what the server tells; addresses as the pod's socket sees them.
type answer struct {
	Pod           string `json:"pod"`
	Node          string `json:"node"`
	Protocol      string `json:"protocol"`
	ClientAddress string `json:"client_address"`
	ClientPort    uint16 `json:"client_port"`
	LocalAddress  string `json:"local_address"`
	LocalPort     uint16 `json:"local_port"`
}

func describe(protocol string, client, local net.Addr) []byte {
	from, to := addressAndPort(client), addressAndPort(local)
	text, err := json.Marshal(answer{
		Pod:           podName(),
		Node:          os.Getenv("NODE_NAME"),
		Protocol:      protocol,
		ClientAddress: from.Addr().Unmap().String(),
		ClientPort:    from.Port(),
		LocalAddress:  to.Addr().Unmap().String(),
		LocalPort:     to.Port(),
	})
	if err != nil {
		panic(err)
	}
	return append(text, '\n')
}

func addressAndPort(name net.Addr) netip.AddrPort {
	parsed, err := netip.ParseAddrPort(name.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return parsed
}

// podName is POD_NAME, or else the host name, which Kubernetes sets to the pod's.
func podName() string {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

// serve answers until SIGTERM; then /readyz fails at once, and all else goes on for the drain time.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	port := flags.Int("port", 8080, "TCP and UDP")
	drain := flags.Duration("drain", 5*time.Second, "how long to answer after SIGTERM")
	_ = flags.Parse(arguments)

	var leaving atomic.Bool
	server := &http.Server{Addr: fmt.Sprintf(":%d", *port), Handler: pages(&leaving)}
	datagrams, err := net.ListenPacket("udp", server.Addr)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go answerDatagrams(datagrams)
	go func() { failed <- server.ListenAndServe() }()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case err := <-failed:
		return err
	case <-stop:
	}
	leaving.Store(true)
	time.Sleep(*drain)
	deadline, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return server.Shutdown(deadline)
}

func pages(leaving *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		_, _ = w.Write(describe("TCP", textAddress(r.RemoteAddr), local))
	})
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if leaving.Load() {
			http.Error(w, "leaving", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}

type textAddress string

func (textAddress) Network() string  { return "tcp" }
func (a textAddress) String() string { return string(a) }

func answerDatagrams(datagrams net.PacketConn) {
	buffer := make([]byte, 65536)
	for {
		length, client, err := datagrams.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			answer := describe("UDP", client, datagrams.LocalAddr())
			_, _ = datagrams.WriteTo(padded(answer, length), client)
		}
	}
}

// padded fills a line with blanks before its end, so that the answer is as long as the question.
func padded(line []byte, length int) []byte {
	text := bytes.TrimRight(line, "\n")
	blanks := max(length-len(line), 0)
	return append(append(text, bytes.Repeat([]byte(" "), blanks)...), '\n')
}
