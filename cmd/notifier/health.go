package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// newHealthCommand asks a worker on this host whether it lives: the health check of a container without a shell.
func newHealthCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "health",
		Short:  "Check whether the worker on this host is alive",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
			if err != nil {
				return &usageError{err}
			}
			if settings.HTTP.Addr == "" {
				return nil // without the server there is nothing to ask
			}
			if err := askHealth(cmd.Context(), settings.HTTP.Addr); err != nil {
				return fmt.Errorf("asking %s: %w", settings.HTTP.Addr, err)
			}
			return nil
		},
	}
}

func askHealth(ctx context.Context, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/healthz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
