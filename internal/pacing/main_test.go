package pacing

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
)

func TestMain(m *testing.M) { scripttest.Main(m) }
