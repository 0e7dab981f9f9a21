-- finish.lua: records that events were delivered, and opens or ends their pairs. Repeating it changes nothing.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  leased       sorted set: record -> end of its lease (see parts/doubt.lua)
--   3  done         sorted set: record, or a line feed and the nonce of a call of this script -> when it may be forgotten
--   4  message      sorted set: record -> stamp of its stored message
--   5  taken        sorted set: record -> time of admission, where a meter needs it
--   6… books of pairs, see read_books; then meters, see read_meters: those that follow deliveries
--
-- ARGV
--   nonce, lease, retention, how long a pair is kept (microseconds), books (see read_books), meters (see read_meters)
--   for each event: record, stamp, cost, whether it was in doubt ("1" or "0"), number of its book, field of its pair or '',
--   delivery (see settle_pair), path (see read_path), path in the shadow
--
-- Returns for each event 1 if its delivery was not recorded before, else 0. A delivery counts as done whoever holds the lease:
-- the message is out. A call that is repeated because its reply was lost gets the same answer, as long as its nonce is kept.
--
-- Errors: WRONGTYPE is raised before anything is written.

local keys = { calls = KEYS[1], leased = KEYS[2], done = KEYS[3], message = KEYS[4], taken = KEYS[5] }
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 5)
local nonce, lease, retention = next_argument(), tonumber(next_argument()), tonumber(next_argument())
local pairs_kept = tonumber(next_argument())

local now, newest_call = deployment_time(keys.calls)
redis.call('ZCARD', keys.leased)
redis.call('ZCARD', keys.message)
redis.call('ZCARD', keys.taken)
local books = read_books(next_argument, next_key, now, pairs_kept)
local meters = read_meters(next_argument, next_key, now, lease)
for _, meter in ipairs(meters) do
  read_once(meter)
end

local forget_at = integer(now + retention)
local this_call = '\n' .. nonce
local ran_before = tonumber(redis.call('ZSCORE', keys.done, this_call))
local recorded_until = ran_before and ran_before > now and ran_before - NONCE_KEPT + retention -- by this very call
local events, records, doubts, messages = {}, {}, {}, {}
for record in next_argument do
  local event = { record = record, stamp = next_argument(), cost = tonumber(next_argument()) }
  if next_argument() == '1' then
    doubts[#doubts + 1] = doubt_of(record)
  end
  event.book, event.pair, event.delivery = books[tonumber(next_argument())], next_argument(), next_argument()
  event.paths = { read_path(next_argument, meters), read_path(next_argument, meters) }
  events[#events + 1], records[#records + 1] = event, record
  if event.stamp ~= '' then
    messages[#messages + 1] = event.stamp
    messages[#messages + 1] = record
  end
end

local done_until = {}
for from = 1, #records, PIECE do
  local upto = math.min(from + PIECE - 1, #records)
  for i, time in ipairs(redis.call('ZMSCORE', keys.done, unpack(records, from, upto))) do
    done_until[records[from + i - 1]] = tonumber(time or 0)
  end
end

local reply, dones = {}, {}
for i, event in ipairs(events) do
  local until_then = done_until[event.record]
  local is_new = until_then <= now
  if is_new then
    if event.book then
      settle_pair(event.book, event.pair, event.delivery)
    end
    done_until[event.record] = now + retention
    dones[#dones + 1] = forget_at
    dones[#dones + 1] = event.record
  end
  reply[i] = (is_new or until_then == recorded_until) and 1 or 0
end

check_rights(keys.done, retention)
forget(keys, now, newest_call, retention)
write_books(books)
if #dones > 0 then
  dones[#dones + 1] = integer(now + NONCE_KEPT)
  dones[#dones + 1] = this_call
end
in_pieces('ZADD', keys.done, dones)
redis.call('PEXPIRE', keys.done, milliseconds(retention))
in_pieces('ZADD', keys.message, messages)
redis.call('PEXPIRE', keys.message, milliseconds(lease + retention))
in_pieces('ZREM', keys.leased, records)
in_pieces('ZREM', keys.leased, doubts)
in_pieces('ZREM', keys.taken, records)
for _, event in ipairs(events) do
  event.message = message_name(event.record, event.stamp)
  for _, path in ipairs(event.paths) do
    for _, meter in ipairs(path) do
      meter.algorithm.give_back(meter, event)
    end
  end
end
return reply
