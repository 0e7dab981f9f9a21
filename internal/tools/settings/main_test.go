package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadmeHasTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := withTable(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if wanted != string(text) {
		t.Error("the README's table of settings is not what the code says: run make docs")
	}
}

func TestRewrite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(file, []byte("head\n"+begin+"old\n"+end+"tail\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // writing it again changes nothing
		if err := rewrite(file); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := withTable("head\n" + begin + end + "tail\n")
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != wanted {
		t.Errorf("got %q, want %q", text, wanted)
	}
}

func TestNoPlaceForTheTable(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", begin, end, end + begin} {
		if _, err := withTable(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}
