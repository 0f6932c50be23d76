// SPDX-License-Identifier: Apache-2.0

// Command echo is what runs in the pods of a test cluster: a server that says who it is and whom
// it sees, and the clients that ask it, in one static program for an image without a shell.
package main

import (
	"fmt"
	"os"
)

const usage = `usage: echo serve [-port 8080] [-drain 5s]      answer HTTP and UDP
       echo get [-timeout 5s] [-times 1] URL        print the answer to HTTP requests
       echo post [-timeout 5s] [-size 200000] URL   send bytes to URL/echo and compare the answer
       echo udp [-timeout 5s] [-size 4] HOST:PORT   print the answer to one datagram
       echo lookup NAME                             print the addresses of a name
       echo load [-connections 20] [-duration 10s] [-keep] URL
                                                    ask all the time, print counts as JSON
       echo pause                                   keep the namespaces of a pod`

var commands = map[string]func([]string) error{
	"serve":  serve,
	"get":    get,
	"post":   post,
	"udp":    askUDP,
	"lookup": lookup,
	"load":   load,
	"pause":  pause,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}
