package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/httpserver"
	"github.com/seed-4578ace9/notifier/internal/ingest"
)

// Addresses for this host only, used where a command has no setting.
const (
	PageAddr   = "127.0.0.1:8081"
	IngestAddr = "127.0.0.1:8082"
)

func newPageCommand(run func(ctx context.Context, out io.Writer) error) *cobra.Command {
	return &cobra.Command{
		Use:   "page",
		Short: "Serve the live page beside the workers",
		Long: "Serve the live page of the whole deployment on NOTIFIER_PAGE_ADDR (" + PageAddr + " unless set), until Ctrl-C. A worker\n" +
			"serves it too, where NOTIFIER_PAGE_ADDR is set. The page changes nothing. With NOTIFIER_PAGE_TOKEN or\n" +
			"NOTIFIER_PAGE_TOKEN_FILE its readers need the token: open the page once with ?token=… at the end of its address.",
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), cmd.OutOrStdout()) },
	}
}

func newIngestCommand(run func(ctx context.Context) error) *cobra.Command {
	command := &cobra.Command{
		Use:   "ingest",
		Short: "Take events over HTTP and publish them to NATS JetStream",
		Long: "Take events over HTTP on NOTIFIER_INGEST_ADDR and publish them to NATS JetStream, until SIGTERM, SIGINT or\n" +
			"SIGHUP: for Alertmanager, Grafana, CloudEvents, curl, and any other client without NATS. A request is answered\n" +
			"with 202 once the event is stored. Producers send a token. NOTIFIER_INGEST_TOKENS_FILE has the tokens, each with the\n" +
			"categories that its producer may write to. GET /openapi.json describes the interface. The command needs neither\n" +
			"Redis nor Slack.",
		Example: "  notifier ingest token alertmanager 'payments.>' >> tokens\n" +
			"  NOTIFIER_INGEST_TOKENS_FILE=tokens notifier ingest\n" +
			"  curl -H \"Authorization: Bearer $TOKEN\" -d '{\"title\":\"card declined\"}' http://localhost:8082/v1/events/payments.cards",
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) },
	}
	command.AddCommand(&cobra.Command{
		Use:   "token NAME PATTERN",
		Short: "Make a token for a producer",
		Long: "Make a token for a producer that may write to the categories of PATTERN: 'payments', 'payments.*' (one level below),\n" +
			"'payments.>' (all below), or '>' (everything). The line for NOTIFIER_INGEST_TOKENS_FILE is printed to standard output,\n" +
			"and the token to standard error: it is in no file and cannot be shown again. Several lines may have one token's hash,\n" +
			"each with a pattern, and one name may have several tokens.",
		Example: "  notifier ingest token alertmanager 'payments.>' >> tokens",
		Args:    numberOfArguments(2, 2),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			token, line, err := ingest.NewToken(arguments[0], arguments[1])
			if err != nil {
				return usageOf(cmd, err)
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.ErrOrStderr(), token)
			return err
		},
	})
	return command
}

// CheckIngest returns a [UsageError] if the server has no address. It also returns one if any host could send events without a token.
func CheckIngest(settings config.Ingest) error {
	othersReach := slices.ContainsFunc(strings.Split(settings.Addr, ","), func(address string) bool { return !httpserver.NamesThisHost(address) })
	switch {
	case settings.Addr == "":
		return &UsageError{errors.New("NOTIFIER_INGEST_ADDR is off; expected an address such as :8082")}
	case settings.TokensFile == "" && othersReach:
		return &UsageError{fmt.Errorf("NOTIFIER_INGEST_TOKENS_FILE: not set, but other hosts reach NOTIFIER_INGEST_ADDR=%q; expected a file of tokens, "+
			"which 'notifier ingest token NAME PATTERN' makes, or an address on loopback such as %s", settings.Addr, IngestAddr)}
	}
	return nil
}
