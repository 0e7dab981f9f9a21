// Command screenshots takes the pictures of the live page for docs/page: `make docs`. The page is the real one, served to a headless
// Chromium. What it shows is made up.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/seed-4578ace9/notifier/internal/page"
	"github.com/seed-4578ace9/notifier/internal/testing/browser"
)

// pictures are taken of the same page.
var pictures = []struct {
	name, scheme  string
	width, height int64
}{
	{"light", "light", 1100, 1000},
	{"dark", "dark", 1100, 1000},
	{"phone", "light", 390, 844},
}

func main() {
	if err := take(filepath.Join("docs", "page")); err != nil {
		fmt.Fprintf(os.Stderr, "screenshots: %v\n", err)
		os.Exit(1)
	}
}

// take writes all pictures into a folder.
func take(folder string) (err error) {
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	server, err := page.Listen(ctx, "127.0.0.1:0", page.Options{Source: sample{time.Now()}, Logger: slog.Default()})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	defer func() { err = errors.Join(err, server.Shutdown(ctx), <-served) }()
	tab, stop, err := browser.Start(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, p := range pictures {
		picture, err := shoot(tab, "http://"+server.Addr(), p.scheme, p.width, p.height)
		if err != nil {
			return fmt.Errorf("taking the picture %s: %w", p.name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, p.name+".png"), picture, 0o644); err != nil { //nolint:gosec // for all to read
			return err
		}
	}
	return nil
}

// shoot opens the page in a window of a size, waits until it is live, and takes a picture.
func shoot(tab context.Context, url, scheme string, width, height int64) ([]byte, error) {
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(tab, emulation.SetEmulatedMedia, media); err != nil {
		return nil, err
	}
	err := chromedp.Do(tab,
		chromedp.EmulateViewport(width, height),
		chromedp.Navigate(url),
		chromedp.WaitVisible(chromedp.CSS("#connection[data-state=live]")),
		chromedp.WaitVisible(chromedp.CSS("#decisions li")),
	)
	if err != nil {
		return nil, err
	}
	return chromedp.Run(tab, chromedp.CaptureScreenshot())
}
