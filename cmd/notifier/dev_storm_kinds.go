//go:build !nodev

package main

// stormKind is what the storm tells of a category.
type stormKind struct {
	category, source string

	field, value string   // a field with a number in its value
	values       int      // of which the number is drawn, from 1 on
	link         string   // stands before the value; "" for no link
	titles       []string // with a severity before each
}

// stormKinds are what the storm is about, the loudest first.
var stormKinds = []stormKind{
	{
		category: "payments", source: "checkout", field: "order", value: "48%03d", values: 999, link: "https://pay.example.com/orders/",
		titles: []string{"error Card declined: insufficient funds", "error Card declined by the bank", "warning Payment took 9 s", "critical Payment provider answers 503"},
	},
	{
		category: "errors", source: "web", field: "path", value: "/checkout/step-%d", values: 4,
		titles: []string{"error 500 from GET /checkout", "error Unhandled exception: cart is nil", "warning 404s have doubled"},
	},
	{
		category: "api", source: "gateway", field: "route", value: "/v2/orders/%d", values: 40,
		titles: []string{"error Upstream timed out after 30 s", "warning p99 is above 2 s", "error 502 from the orders service"},
	},
	{
		category: "login", source: "auth", field: "user", value: "u-%04d", values: 9999,
		titles: []string{"warning Five wrong passwords in a row", "info Login from a new country", "error Single sign-on does not answer"},
	},
	{
		category: "latency", source: "slo-monitor", field: "service", value: "svc-%02d", values: 12, link: "https://grafana.example.com/d/",
		titles: []string{"warning p95 is above 800 ms", "critical Error budget burns 14 times too fast"},
	},
	{
		category: "queue", source: "rabbitmq", field: "queue", value: "orders-%d", values: 8,
		titles: []string{"warning 12,000 messages wait", "error No consumer is connected", "critical Memory alarm: publishers are blocked"},
	},
	{
		category: "database", source: "postgres", field: "host", value: "db-%02d", values: 6, link: "https://grafana.example.com/d/",
		titles: []string{"warning Query has run for 90 s", "error Deadlock detected", "critical Connections are exhausted"},
	},
	{
		category: "deploys", source: "ci", field: "build", value: "%d", values: 4000, link: "https://ci.example.com/builds/",
		titles: []string{"info Deployment to eu-west has started", "info Deployment has finished", "error Deployment was rolled back"},
	},
	{
		category: "disk", source: "node-exporter", field: "host", value: "web-%02d", values: 24,
		titles: []string{"warning Disk is 85 % full", "critical Disk is full in 2 hours"},
	},
	{
		category: "memory", source: "node-exporter", field: "host", value: "web-%02d", values: 24,
		titles: []string{"warning Memory is 90 % used", "error Process was killed: out of memory"},
	},
	{
		category: "security", source: "ids", field: "address", value: "203.0.113.%d", values: 254,
		titles: []string{"critical Port scan from one address", "error Token of a former employee was used", "warning Certificate is not trusted"},
	},
	{
		category: "network", source: "switches", field: "port", value: "core-1/%d", values: 48,
		titles: []string{"error Link is down", "warning 2 % of packets are lost"},
	},
	{
		category: "cache", source: "redis", field: "node", value: "cache-%d", values: 6,
		titles: []string{"warning Hit rate fell below 60 %", "error Failover to the replica"},
	},
	{
		category: "search", source: "elastic", field: "index", value: "products-%d", values: 5,
		titles: []string{"error Shard is not assigned", "warning Indexing is 5 minutes behind"},
	},
	{
		category: "email", source: "mailer", field: "domain", value: "mx%d.example.com", values: 4,
		titles: []string{"warning 3 % of mails bounce", "error Mail server refuses the sender"},
	},
	{
		category: "billing", source: "invoicing", field: "invoice", value: "20%03d", values: 999, link: "https://billing.example.com/invoices/",
		titles: []string{"error Invoice could not be sent", "info Reminder was sent"},
	},
	{
		category: "signups", source: "onboarding", field: "plan", value: "plan-%d", values: 3,
		titles: []string{"info New customer signed up", "warning Sign-up was abandoned at the last step"},
	},
	{
		category: "cron", source: "scheduler", field: "job", value: "nightly-%d", values: 9,
		titles: []string{"error Job failed with status 1", "warning Job took twice as long as usual"},
	},
	{
		category: "backups", source: "restic", field: "host", value: "db-%02d", values: 6,
		titles: []string{"critical No backup for 26 hours", "info Backup has finished"},
	},
	{
		category: "certificates", source: "cert-manager", field: "host", value: "shop-%d.example.com", values: 5,
		titles: []string{"warning Certificate ends in 7 days", "critical Certificate has expired"},
	},
}
