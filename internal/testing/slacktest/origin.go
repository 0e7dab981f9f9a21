package slacktest

import "strings"

// Origin reads the value behind a name, such as "category" or "id", from the last line of a notifier's message. Without one it returns "".
func (p Post) Origin(name string) string {
	for _, text := range p.Message.Texts() {
		if value, found := strings.CutPrefix(text.Text, name+" "); found && text.Type == "plain_text" {
			return value
		}
	}
	return ""
}
