-- finish.lua: records that events were delivered, and opens or ends their pairs. A repeated call changes nothing.
--
-- A delivery counts whoever holds the lease: the message has been sent.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   leased   sorted set: event key -> end of the lease (see lib/doubt.lua)
--   3   done     sorted set: event key or a line feed and the nonce of a call of this script -> when the record expires
--   4   message  sorted set: event key -> version of the stored message
--   5   taken    hash: event key -> time of admission and timed buckets (see lib/buckets.lua)
--   6…  books of pairs, see read_books; then the buckets that follow deliveries, see read_buckets
--
-- ARGV
--   nonce, lease, retention, retention of pairs (microseconds), books (see read_books), buckets (see read_buckets)
--   for each event: event key, version, cost, number of its book, field of its pair or '',
--   delivery (see read_delivery), path (see read_path), path in the shadow
--
-- Returns for each event 1 if its delivery was not recorded before, otherwise 0. A retry after a lost reply
-- returns the first answer, for as long as its nonce is stored.
--
-- Errors: WRONGTYPE is raised before anything is written.

--@include lib/buckets algorithms lib/records lib/doubt lib/pairs

local keys = { calls = KEYS[1], leased = KEYS[2], done = KEYS[3], message = KEYS[4], taken = KEYS[5] }
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 5)
local nonce, lease, retention = next_argument(), tonumber(next_argument()), tonumber(next_argument())
local pairs_kept = tonumber(next_argument())

local now = deployment_time(keys.calls)
redis.call('ZCARD', keys.leased)
redis.call('ZCARD', keys.message)
redis.call('HDEL', keys.taken, '')
local books = read_books(next_argument, next_key, now, pairs_kept)
local buckets = read_buckets(next_argument, next_key, now, lease)
read_all(buckets)

local forget_at = integer(now + retention)
local this_call = '\n' .. nonce
local ran_before = tonumber(redis.call('ZSCORE', keys.done, this_call))
-- The expiry that an earlier run of this very call recorded; nil if there was none.
local recorded_until = ran_before and ran_before > now and ran_before - NONCE_KEPT + retention
local events, event_keys, leases, messages = {}, {}, {}, {}
for event_key in next_argument do
  local event = { event_key = event_key, version = next_argument(), cost = tonumber(next_argument()) }
  event.book, event.pair, event.delivery = books[tonumber(next_argument())], next_argument(), next_argument()
  event.following = { read_path(next_argument, buckets), read_path(next_argument, buckets) }
  events[#events + 1], event_keys[#event_keys + 1] = event, event_key
  leases[#leases + 1], leases[#leases + 2] = event_key, doubt_of(event_key) -- whoever left the mark may not be the caller
  if event.version ~= '' then
    messages[#messages + 1] = event.version
    messages[#messages + 1] = event_key
  end
end

local done_until = {}
for from = 1, #event_keys, PIECE do
  local upto = math.min(from + PIECE - 1, #event_keys)
  for i, time in ipairs(redis.call('ZMSCORE', keys.done, unpack(event_keys, from, upto))) do
    done_until[event_keys[from + i - 1]] = tonumber(time or 0)
  end
end

local reply, dones = {}, {}
for i, event in ipairs(events) do
  local until_then = done_until[event.event_key]
  local is_new = until_then <= now
  if is_new then
    if event.book then
      settle_pair(event.book, event.pair, event.event_key, event.delivery)
    end
    done_until[event.event_key] = now + retention
    dones[#dones + 1] = forget_at
    dones[#dones + 1] = event.event_key
  end
  reply[i] = (is_new or until_then == recorded_until) and 1 or 0
end

check_rights(keys.done, retention)
forget(keys, now, retention)
write_books(books)
if #dones > 0 then
  dones[#dones + 1] = integer(now + NONCE_KEPT)
  dones[#dones + 1] = this_call
end
add_and_keep(keys.done, dones, retention)
add_and_keep(keys.message, messages, lease + retention)
in_pieces('ZREM', keys.leased, leases)
in_pieces('HDEL', keys.taken, event_keys)
for _, event in ipairs(events) do
  event.message = message_name(event.event_key, event.version)
  give_back_following(event)
end
return reply
