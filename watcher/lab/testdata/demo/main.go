// Command demo is the lab without a screen: it says "up", and ends with the number that it reads, or at a signal. With an
// argument it takes no notice of SIGTERM.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"flanwatch/watcher/lab"

	"golang.org/x/sys/unix"
)

func main() {
	lab.Child()
	inside, code, err := lab.Enclose()
	if inside && err == nil {
		code, err = run()
	}
	if err != nil {
		var refused *lab.PrivilegeError
		fmt.Println("error:", err, errors.As(err, &refused))
		os.Exit(1)
	}
	os.Exit(code)
}

func run() (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	if len(os.Args) > 1 { // "stubborn"
		signal.Ignore(unix.SIGTERM)
	}
	defer stop()
	s, err := lab.LoadScenario("healthy")
	if err != nil {
		return 0, err
	}
	l, err := lab.Start(ctx, s)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	fmt.Println("up", os.Getpid())
	code := make(chan int, 1)
	go func() {
		var n int
		if _, err := fmt.Scan(&n); err == nil {
			code <- n
		}
	}()
	select {
	case <-ctx.Done():
		return 143, nil
	case n := <-code:
		return n, nil
	}
}
