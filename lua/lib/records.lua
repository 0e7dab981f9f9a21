-- records.lua: checks of rights, and writing of the records of deliveries.

-- Shows a missing right before anything is written: a script that fails does not roll back. Changes only the expiry of the
-- key (microseconds).
local function check_rights(key, kept)
  redis.call('ZREM', key, '')
  redis.call('PEXPIRE', key, milliseconds(kept))
end

-- Adds members to a sorted set and keeps the set that long (microseconds), without members too.
local function add_and_keep(key, members, kept)
  in_pieces('ZADD', key, members)
  redis.call('PEXPIRE', key, milliseconds(kept))
end

-- Removes up to SPARE calls and up to SPARE records of events that no answer depends on any more. The newest call stays, since
-- time must not fall behind it. Scripts that end deliveries call this, since no event waits for them.
local function forget(keys, now, retention)
  local old_calls = redis.call('ZCOUNT', keys.calls, '-inf', integer(now - NONCE_KEPT))
  local counting_calls = redis.call('ZCOUNT', keys.calls, '-inf', integer(now + TOLERANCE))
  remove_lowest(keys.calls, math.max(0, math.min(old_calls, counting_calls - 1, SPARE)))
  local left = SPARE
  local function forget_until(key, upto)
    local forgotten = redis.call('ZRANGE', key, '-inf', integer(upto), 'BYSCORE', 'LIMIT', 0, left)
    left = left - #forgotten
    if #forgotten > 0 then
      redis.call('ZREM', key, unpack(forgotten))
      redis.call('ZREM', keys.message, unpack(forgotten))
      redis.call('HDEL', keys.taken, unpack(forgotten))
    end
  end
  forget_until(keys.done, now)
  forget_until(keys.leased, now - retention)
end
