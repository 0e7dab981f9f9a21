package ingest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// newToken makes a token and its line for the file.
func newToken(t testing.TB, name, pattern string) (token, line string) {
	t.Helper()
	token, line, err := ingest.NewToken(name, pattern)
	testkit.NoError(t, err)
	return token, line
}

func write(t testing.TB, file string, lines ...string) string {
	t.Helper()
	testkit.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return file
}

func bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// TestTokens writes with tokens of several patterns, and with bad ones.
func TestTokens(t *testing.T) {
	t.Parallel()
	below, lineBelow := newToken(t, "below", "payments.>")
	both, lineBoth := newToken(t, "both", "shop")
	level, lineLevel := newToken(t, "level", "shop.*")
	every, lineEvery := newToken(t, "every", ">")
	stranger, _ := newToken(t, "stranger", ">")
	file := write(t, filepath.Join(t.TempDir(), "tokens"), "# who may write where", "", lineBelow, "  "+lineBoth, strings.Replace(lineBoth, " shop", " shop.>", 1), lineLevel, lineEvery)
	d := open(t, func(o *ingest.Options) { o.TokensFile = file })
	for _, test := range []struct {
		token, category string
		status          int
	}{
		{below, "payments.cards", 202}, {below, "payments.cards.eu", 202}, {below, "PAYMENTS.cards", 202}, {below, "payments", 403}, {below, "paymentsx.cards", 403}, {below, "shop", 403},
		{both, "shop", 202}, {both, "shop.a.b", 202}, {level, "shop.a", 202}, {level, "shop.a.b", 403}, {level, "shop", 403},
		{every, "anything", 202}, {every, "a.b.c", 202},
		{stranger, "payments.cards", 401}, {"", "payments.cards", 401}, {below + "x", "payments.cards", 401}, {below[:len(below)-1], "payments.cards", 401},
	} {
		got := d.post("/v1/events/"+test.category, `{"title":"x","category":"security"}`, bearer(test.token)...)
		testkit.Equal(t, got.status, test.status, "status of %s with token %.12s", test.category, test.token)
		testkit.Equal(t, got.header.Get("WWW-Authenticate") == "Bearer", test.status == 401, "the scheme is named")
	}
	for _, header := range []string{below, "Basic " + below, "Bearer"} {
		testkit.Equal(t, d.post("/v1/events/payments.cards", "x", "Authorization", header).status, 401, "status with %.12q", header)
	}
	d.log.WantCount(t, 1, `"refused requests without a valid token" requests=1 category=payments.cards address=127.0.0.1:`) // one a minute
	testkit.Equal(t, d.send(http.MethodGet, "/openapi.json", "").body, testkit.Text(t, "openapi.json"), "the description, which needs no token")
	testkit.Equal(t, d.counts.Get("stored both"), 2, "events of a client")
}

// TestMisdirected sends what never reaches a category. A refusal is counted and logged if the client is known.
func TestMisdirected(t *testing.T) {
	t.Parallel()
	token, line := newToken(t, "alertmanager", "alerts.>")
	file := write(t, filepath.Join(t.TempDir(), "tokens"), line)
	d := open(t, func(o *ingest.Options) { o.TokensFile = file })
	for i, test := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"POST", "/v1/alertmanger/alerts.x", nil, 404}, {"POST", "/v1/alertmanager/alerts.x/", nil, 404}, {"PUT", "/v1/alertmanager/alerts.x", nil, 405},
		{"POST", "/v1/alertmanager/other", nil, 403}, {"POST", "/v1/alertmanager/alerts..x", nil, 400}, {"POST", "/v1/events/alerts.x", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"POST", "/v1/events/alerts.x", []string{"X-Long", strings.Repeat("a", 17_000)}, 431},
	} {
		got := d.send(test.method, test.path, groupOf(alertOf(1, 0)), append(test.headers, bearer(token)...)...)
		testkit.Equal(t, got.status, test.status, "status of %s %s", test.method, test.path)
		testkit.Equal(t, d.counts.Get("refused alertmanager"), i+1, "refused requests after %s %s", test.method, test.path)
	}
	testkit.Equal(t, d.send("POST", "/v1/alertmanger/alerts.x", "x").status, 404, "status without a token")
	testkit.Equal(t, d.counts.Get("refused alertmanager"), 7, "refused requests of the client")
	d.log.WantCount(t, 1, "client=alertmanager requests=1 path=/v1/alertmanger/alerts.x status=404")
}

// TestNewToken makes tokens, and reads bad lines. The errors show no secret.
func TestNewToken(t *testing.T) {
	t.Parallel()
	token, line := newToken(t, "alerts", "payments.>")
	again, _ := newToken(t, "alerts", "payments.>")
	testkit.Check(t, token != again && !strings.Contains(line, token) && len(token) >= 43,
		"got the tokens %q and %q and the line %q, want different tokens and a line without them", token, again, line)
	_, good := newToken(t, "good", ">")
	hash := strings.Fields(good)[1]
	for text, says := range map[string]string{
		"":                                     "empty",
		"# nobody\nname " + token + " >\n":     "line 2: the second column is not a hash",
		"name " + hash + "\n":                  "expected three columns, a name, a hash and a pattern; found 2",
		"a/b " + hash + " >\n":                 "the name is invalid",
		"name " + hash + " pay*\n":             "scope",
		"a " + hash + " >\nb " + hash + " x\n": "line 2: the hash is that of another name",
		"a " + hash + " >\na " + hash + " >\n": "given twice",
		"name sha256:" + hash[7:20] + " >\n":   "line 1",
	} {
		file := filepath.Join(t.TempDir(), "tokens")
		testkit.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := ingest.Listen(t.Context(), ingest.Options{Addr: "127.0.0.1:0", TokensFile: file})
		if err == nil || !strings.HasPrefix(err.Error(), "reading the tokens in "+file+": ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), token) {
			t.Errorf("%q: got %v, want the file and %q", text, err, says)
		}
	}
	for name, pattern := range map[string]string{"a b": ">", "": ">", "name": "a b", "other": "Payments"} {
		_, _, err := ingest.NewToken(name, pattern)
		testkit.Fails(t, "NewToken("+name+", "+pattern+")", err, nil)
	}
}

// TestTokensFileReplaced replaces the file in several ways. A bad file leaves the last good one in force. The log says so once.
func TestTokensFileReplaced(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	first, lineFirst := newToken(t, "first", ">")
	second, lineSecond := newToken(t, "second", ">")
	third, lineThird := newToken(t, "third", ">")
	// Kubernetes mounts the file as a link into a folder, which is a link too.
	for _, version := range []string{"1", "2"} {
		testkit.NoError(t, os.Mkdir(filepath.Join(folder, version), 0o700))
	}
	write(t, filepath.Join(folder, "1", "tokens"), lineFirst)
	write(t, filepath.Join(folder, "2", "tokens"), lineSecond)
	testkit.NoError(t, os.Symlink("1", filepath.Join(folder, "data")))
	file := filepath.Join(folder, "tokens")
	testkit.NoError(t, os.Symlink(filepath.Join("data", "tokens"), file))
	d := open(t, func(o *ingest.Options) { o.TokensFile = file })
	status := func(token string) int { return d.post("/v1/events/a", "x", bearer(token)...).status }
	only := func(what, good string, bad ...string) {
		t.Helper()
		testkit.Eventually(t, "the token of "+what, func() bool { return status(good) == 202 })
		for _, token := range bad {
			testkit.Equal(t, status(token), 401, "status of another token than that of %s", what)
		}
	}
	only("the start", first, second, third)

	testkit.NoError(t, os.Symlink("2", filepath.Join(folder, "data.new")))
	testkit.NoError(t, os.Rename(filepath.Join(folder, "data.new"), filepath.Join(folder, "data")))
	only("the link", second, first, third)

	testkit.NoError(t, os.Rename(write(t, filepath.Join(folder, "new"), "good for nothing"), file))
	testkit.Eventually(t, "a line about the bad file", func() bool { return d.log.Count("cannot reload file") == 1 })
	testkit.NoError(t, os.Remove(file))
	testkit.Eventually(t, "a line about the absent file", func() bool { return d.log.Count("cannot reload file") == 2 })
	testkit.NoError(t, syscall.Mkfifo(file, 0o600)) // nobody writes to it
	testkit.Eventually(t, "a line about the pipe", func() bool { return d.log.Count("is not a regular file") == 1 })
	testkit.NoError(t, os.Remove(file))
	testkit.Eventually(t, "another line about the absent file", func() bool { return d.log.Count("cannot reload file") == 4 })
	only("the last good file", second, first, third)

	write(t, file, lineThird)
	only("the file that is written", third, first, second)
	write(t, file, "# nobody")
	testkit.Eventually(t, "an end of all tokens", func() bool { return status(third) == 401 })
	d.log.WantCount(t, 4, "cannot reload file")
}

// TestRate reaches the rate of one token. Another token has its own rate.
func TestRate(t *testing.T) {
	t.Parallel()
	busy, lineBusy := newToken(t, "busy", ">")
	calm, lineCalm := newToken(t, "calm", ">")
	file := write(t, filepath.Join(t.TempDir(), "tokens"), lineBusy, lineCalm)
	d := open(t, func(o *ingest.Options) { o.TokensFile, o.Rate, o.Burst = file, 1.0/3600, 3 })
	for i := range 5 {
		got := d.post("/v1/events/a", "x", bearer(busy)...)
		testkit.Equal(t, got.status == 202, i < 3, "event %d is taken, with status %d", i, got.status)
		if i >= 3 {
			testkit.Equal(t, got.status, 429, "status of %s", got.body)
			testkit.Equal(t, got.header.Get("Retry-After"), "3600", "Retry-After")
		}
	}
	batch := "[" + strings.Repeat(structured+",", 3) + structured + "]"
	kind := []string{"Content-Type", "application/cloudevents-batch+json"}
	testkit.Equal(t, d.post("/v1/events/a", "x", bearer(calm)...).status, 202, "status of another token")
	testkit.Equal(t, d.post("/v1/events/a", batch, append(kind, bearer(calm)...)...).status, 202, "status of a batch that is more than the rest")
	testkit.Equal(t, d.post("/v1/events/a", "x", bearer(calm)...).status, 429, "status of the next event")
	testkit.Equal(t, d.counts.Get("limited busy"), 2, "requests above the rate")
	testkit.Equal(t, d.left(), 5, "stored events")
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	number      int64
	lasts       time.Duration // how long its next certificate lasts
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{lasts: time.Hour, key: testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	signed := testkit.Must(x509.CreateCertificate(rand.Reader, a.certificate, a.certificate, a.key.Public(), a.key))(t)
	a.certificate = testkit.Must(x509.ParseCertificate(signed))(t)
	return a
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}))
}

// sign makes a certificate and its key in PEM.
func (a *authority) sign(t testing.TB) (certificate, key string) {
	t.Helper()
	a.number++
	private := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.number), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(a.lasts),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signed := testkit.Must(x509.CreateCertificate(rand.Reader, template, a.certificate, private.Public(), a.key))(t)
	encoded := testkit.Must(x509.MarshalPKCS8PrivateKey(private))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

// TestTLS replaces the certificate of the server, and connects clients with and without a certificate of the right authority.
func TestTLS(t *testing.T) {
	t.Parallel()
	folder, own, clients := t.TempDir(), newAuthority(t), newAuthority(t)
	files := ingest.TLSFiles{
		CertFile: filepath.Join(folder, "cert"), KeyFile: filepath.Join(folder, "key"), ClientCAFile: write(t, filepath.Join(folder, "ca"), clients.pem()),
	}
	replace := func(certificate, key string) {
		write(t, files.CertFile, certificate)
		write(t, files.KeyFile, key)
	}
	replace(own.sign(t))
	d := open(t, func(o *ingest.Options) { o.TLS = files })
	clientOf := func(signedBy *authority) *http.Client {
		roots := x509.NewCertPool()
		roots.AddCert(own.certificate)
		config := &tls.Config{RootCAs: roots}
		if signedBy != nil {
			certificate, key := signedBy.sign(t)
			config.Certificates = []tls.Certificate{testkit.Must(tls.X509KeyPair([]byte(certificate), []byte(key)))(t)}
		}
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
	}
	for name, stranger := range map[string]*http.Client{"no certificate": clientOf(nil), "a certificate of another authority": clientOf(own)} {
		if response, err := stranger.Post(d.url+"/v1/events/a", "text/plain", strings.NewReader("x")); err == nil {
			_ = response.Body.Close()
			t.Errorf("a client with %s: got an answer, want an error", name)
		}
	}
	known := clientOf(clients)
	serial := func() int64 {
		response, err := known.Post(d.url+"/v1/events/a", "text/plain", strings.NewReader("x"))
		testkit.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		testkit.Equal(t, response.StatusCode, 202, "status over TLS")
		return response.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	testkit.Equal(t, serial(), 2, "serial number of the first certificate")
	own.lasts = time.Minute
	replace(own.sign(t))
	testkit.Eventually(t, "the new certificate", func() bool { return serial() == 4 })
	write(t, files.KeyFile, "no key")
	testkit.Eventually(t, "a line about the bad key", func() bool { return d.log.Count("cannot reload file") > 0 })
	testkit.Equal(t, serial(), 4, "serial number of the last good certificate")
	testkit.Eventually(t, "a line about the certificate's end", func() bool { return d.log.Count("renew it") > 0 })
	d.log.WantCount(t, 1, `"clients will refuse the certificate: renew it" error="the certificate ends at `)
	own.lasts = time.Hour
	replace(own.sign(t))
	testkit.Eventually(t, "a line about the newest certificate", func() bool { return d.log.Count("the certificate is renewed") > 0 })
	d.client.CloseIdleConnections()
}
