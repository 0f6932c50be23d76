// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// counts is what a load run prints. Failures are counted by kind, answers by pod.
type counts struct {
	mutex     sync.Mutex
	Requests  int            `json:"requests"`
	Answers   map[string]int `json:"answers"`
	Failures  map[string]int `json:"failures"`
	LongestMs int64          `json:"longest_ms"`
	stalls    stalls
}

// An answer is waited for so many times as long as it may take, because this process may stall.
const patience = 4

// A stall that is shorter does not matter.
const noticeable = 100 * time.Millisecond

func (c *counts) add(pod string, err error, took time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.Requests++
	c.LongestMs = max(c.LongestMs, took.Milliseconds())
	if err != nil {
		c.Failures[kindOf(err)]++
	} else {
		c.Answers[pod]++
	}
}

// kindOf names a failure, so that runs can be compared; addresses and ports stay out of it.
func kindOf(err error) string {
	var network net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, io.EOF):
		return "closed"
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	return err.Error()
}

// stalls is how long this process has waited for the CPU so far, where that was noticeable. A
// machine that is too busy must not look like a network that loses packets.
type stalls struct {
	total atomic.Int64
}

func (s *stalls) watch() {
	const pause = 10 * time.Millisecond
	for last := time.Now(); ; last = time.Now() {
		time.Sleep(pause)
		if late := time.Since(last) - pause; late > noticeable {
			s.total.Add(int64(late))
		}
	}
}

// since is how long of the time after a moment this process was running; before: total at that time.
func (s *stalls) since(moment time.Time, before int64) time.Duration {
	return time.Since(moment) - time.Duration(s.total.Load()-before)
}

// load asks from many workers: over a new connection each time, or with -keep over one each. An
// interrupt ends it early. -timeout is of the time in which this process was running.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	connections := flags.Int("connections", 20, "at the same time")
	duration := flags.Duration("duration", 10*time.Second, "of the whole run")
	timeout := flags.Duration("timeout", 2*time.Second, "of one request")
	pause := flags.Duration("pause", 10*time.Millisecond, "of a worker between two requests")
	keep := flags.Bool("keep", false, "keep the connections")
	_ = flags.Parse(arguments)

	seen := counts{Answers: map[string]int{}, Failures: map[string]int{}}
	go seen.stalls.watch()
	end := time.Now().Add(*duration)
	running, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var workers sync.WaitGroup
	for range *connections {
		workers.Go(func() {
			client := newClient(patience**timeout, *keep)
			for running.Err() == nil && time.Now().Before(end) {
				seen.ask(client, flags.Arg(0), *timeout)
				time.Sleep(*pause)
			}
		})
	}
	workers.Wait()
	text, err := json.Marshal(&seen)
	fmt.Println(string(text))
	return err
}

func (c *counts) ask(client *http.Client, url string, timeout time.Duration) {
	started, before := time.Now(), c.stalls.total.Load()
	body, err := fetch(client, url)
	var who answer
	if err == nil {
		err = json.Unmarshal([]byte(body), &who)
	}
	took := c.stalls.since(started, before)
	if err == nil && took > timeout {
		// After a stall, its watcher may be the last to run again.
		time.Sleep(noticeable)
		if took = c.stalls.since(started, before); took > timeout {
			err = os.ErrDeadlineExceeded
		}
	}
	c.add(who.Pod, err, took)
}
