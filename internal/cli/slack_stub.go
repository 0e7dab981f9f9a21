//go:build !nodev

package cli

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/spf13/cobra"

	"github.com/seed-4578ace9/notifier/internal/slackstub"
)

// stubAddr is where slack-stub listens unless --addr is set: reachable from this host only.
const stubAddr = "127.0.0.1:8085"

// NewSlackStub returns the command slack-stub, which the image leaves out.
func NewSlackStub() *cobra.Command {
	address := stubAddr
	command := &cobra.Command{
		Use:   "slack-stub",
		Short: "Serve a stand-in for Slack, with a page that shows its messages",
		Long: "Serve a stand-in for Slack until Ctrl-C, to rehearse without a workspace. It answers as Slack's Web API does, checks token,\n" +
			"channel and message, and shows on a page the messages that it took and the posts that it refused. Every\n" +
			"channel exists. The command keeps the newest 500 messages in memory and nothing when it ends.",
		Example: "  notifier slack-stub\n  NOTIFIER_SLACK_API_URL=http://" + stubAddr + "/api/ NOTIFIER_SLACK_TOKEN=" + slackstub.Token +
			" NOTIFIER_SLACK_CHANNEL='#alerts' notifier run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return usageOf(cmd, fmt.Errorf("--addr: %w; expected an address such as %s", err, stubAddr))
			}
			return runSlackStub(cmd.Context(), cmd.OutOrStdout(), address)
		},
	}
	command.Flags().StringVar(&address, "addr", stubAddr, "address to listen on; whoever reaches it can read the messages")
	return command
}

func runSlackStub(ctx context.Context, out io.Writer, address string) error {
	server, err := slackstub.Listen(address)
	if err != nil {
		return fmt.Errorf("the stand-in for slack: %w", err)
	}
	defer server.Close()
	_, err = fmt.Fprintf(out, "the messages: http://%s/\nthe settings of a worker that posts here:\nexport NOTIFIER_SLACK_API_URL=%s NOTIFIER_SLACK_TOKEN=%s NOTIFIER_SLACK_CHANNEL='#alerts'\n",
		server.Address(), server.APIURL(), slackstub.Token)
	if err != nil {
		return fmt.Errorf("printing the address: %w", err)
	}
	<-ctx.Done()
	return nil
}
