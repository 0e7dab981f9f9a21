package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/await"
)

// newHealthCommand returns the health check for containers without a shell.
func newHealthCommand() *cobra.Command {
	var wait duration
	command := &cobra.Command{
		Use:   "health",
		Short: "Check whether the worker on this host is alive, or wait until it is ready",
		Long: "Ask the worker or ingest on this host, at NOTIFIER_HTTP_ADDR, whether it is alive. With --wait, wait until it is ready,\n" +
			"at most that long. The command prints nothing unless it fails.",
		Example: "  notifier run > worker.log 2>&1 &\n  notifier health --wait 30s",
		RunE: func(cmd *cobra.Command, _ []string) error {
			waits := cmd.Flags().Changed("wait")
			if waits && wait <= 0 {
				return usageOf(cmd, fmt.Errorf("--wait %s is not above 0", &wait))
			}
			settings, err := commandSettings()
			if err != nil {
				return err
			}
			address := settings.HTTP.Addr
			switch {
			case address == "" && waits:
				return usageOf(cmd, errors.New("--wait needs NOTIFIER_HTTP_ADDR, which is off; expected an address such as :8080"))
			case address == "": // a container without the server counts as healthy
				return nil
			case waits:
				err = awaitReady(cmd.Context(), address, time.Duration(wait))
			default:
				err = askAdmin(cmd.Context(), address, "/healthz")
			}
			if err != nil {
				return fmt.Errorf("asking %s: %w", address, err)
			}
			return nil
		},
	}
	durationVar(command, &wait, "wait", "wait until the worker is ready, at most this long, such as 30s")
	return command
}

// awaitReady asks until a worker is ready. If time runs out or the context ends, the error has the last answer.
func awaitReady(ctx context.Context, address string, wait time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("not ready within %s", wait))
	defer cancel()
	var last error
	for {
		err := askAdmin(ctx, address, "/readyz")
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // otherwise the deadline interrupted the request
			last = err
		}
		if !await.For(ctx, 100*time.Millisecond) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
	}
}

// direct uses no proxy of the environment, since the worker is on this host.
var direct = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// askAdmin asks the HTTP server of a worker. The error has the answer of an unhealthy worker.
func askAdmin(ctx context.Context, address, path string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return err
	}
	response, err := direct.Do(request)
	if err != nil {
		if failed, isURL := errors.AsType[*url.Error](err); isURL {
			err = failed.Err // without the address, which the caller adds
		}
		return fmt.Errorf("%w (check NOTIFIER_HTTP_ADDR, and that a worker runs on this host)", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		const longest = 2048
		reason, _ := io.ReadAll(io.LimitReader(response.Body, longest)) // without a body, the status is reported
		return errors.New(strings.TrimSpace(response.Status + ": " + strings.ReplaceAll(strings.TrimSpace(string(reason)), "\n", "; ")))
	}
	return nil
}
