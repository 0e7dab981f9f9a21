package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/requirements"
)

// CheckServer checks the kind and version of the server that has the deployment's keys. If the server is a Sentinel, too old, or rejects the
// password, the error is of the class ErrForbidden. If the user may not ask for the version, CheckServer returns nil.
func (r *Runner) CheckServer(ctx context.Context) error {
	var info *redis.InfoCmd
	var address string
	err := r.Read(ctx, "asking for the server's version", func(ctx context.Context, _ redis.Cmdable) error {
		node, err := Owner(ctx, r.o.Client, r.Key("calls"))
		if err != nil {
			return err
		}
		info, address = node.InfoMap(ctx, "server"), addressOf(node)
		return info.Err()
	})
	switch {
	case errors.Is(err, ErrUnavailable), isUnauthenticated(err):
		return err
	case err != nil:
		return nil //nolint:nilerr // the user may not ask
	}
	if err := r.fit(info, address); err != nil {
		return unfit{err}
	}
	return nil
}

// isUnauthenticated reports whether the server wants another password. To a longer call, such a server answers only "ERR Protocol error".
func isUnauthenticated(err error) bool {
	reply, answered := errors.AsType[redis.Error](err)
	return answered && (strings.HasPrefix(reply.Error(), "NOAUTH") || strings.HasPrefix(reply.Error(), "WRONGPASS"))
}

// fit returns an error if the server is a Sentinel, or older than the required version.
func (r *Runner) fit(info *redis.InfoCmd, address string) error {
	if cmp.Or(info.Item("Server", "redis_mode"), info.Item("Server", "server_mode")) == "sentinel" { // in Redis' words, and in those of Valkey 8
		return errors.New("the server is a Sentinel: add ?master_name=… to NOTIFIER_REDIS_URL")
	}
	if version := info.Item("Server", "valkey_version"); version != "" {
		return requirements.Valkey().Check(version, address)
	}
	version := info.Item("Server", "redis_version")
	if r.library != nil {
		return requirements.RedisFunctions().Check(version, address)
	}
	return requirements.Redis().Check(version, address)
}

// unfit is the error of a server that can never do the work, such as one that is too old.
type unfit struct{ error }

// Is has the error be of the class ErrForbidden.
func (unfit) Is(class error) bool { return class == ErrForbidden || class == ErrRefused }

// addressOf is the address of a single server, "" where the client does not know it.
func addressOf(node redis.Cmdable) string {
	if client, single := node.(*redis.Client); single && strings.Contains(client.Options().Addr, ":") {
		return client.Options().Addr
	}
	return ""
}

// explainLack says what to do about a server that runs no scripts.
func explainLack(err error) error {
	if err == nil || !slices.ContainsFunc(lackOfScripts, func(sign string) bool { return strings.Contains(err.Error(), sign) }) {
		return err
	}
	return fmt.Errorf("the server runs no Lua scripts (Valkey 9.1 has them in a module, which loadmodule libvalkeylua.so loads; "+
		"on other servers the commands EVAL and EVALSHA are disabled): %w", err)
}
