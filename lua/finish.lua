-- finish.lua: records that events were delivered, and opens or ends their pairs. Repeating it changes nothing but how long that
-- is remembered.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  leased       sorted set: record -> end of its lease
--   3  done         sorted set: record -> when it may be forgotten
--   4  message      sorted set: record -> stamp of its stored message
--   5  taken        sorted set: record -> time of admission, where a meter needs it
--   6  pairs        hash: see pair_book
--   7  pairs:until  sorted set: see pair_book
--   8… meters       see read_meters: those that follow deliveries
--
-- ARGV
--   lease, retention, how long a pair is kept (microseconds), meters (see read_meters)
--   for each event: record, stamp, cost, field of its pair or '', delivery (see settle_pair), path (see read_path), path in
--   the shadow
--
-- Returns the time. A delivery counts as done whoever holds the lease: the message is out.
--
-- Errors: WRONGTYPE is raised before anything is written.

local keys = { calls = KEYS[1], leased = KEYS[2], done = KEYS[3], message = KEYS[4], taken = KEYS[5] }
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 7)
local lease, retention = tonumber(next_argument()), tonumber(next_argument())
local pairs_kept = tonumber(next_argument())

local now, newest_call = deployment_time(keys.calls)
redis.call('ZCARD', keys.leased)
redis.call('ZCARD', keys.message)
redis.call('ZCARD', keys.taken)
local meters = read_meters(next_argument, next_key, now, lease)
for _, meter in ipairs(meters) do
  read_once(meter)
end

local book = pair_book(KEYS[6], KEYS[7], now, pairs_kept)
local forget_at = integer(now + retention)
local records, dones, messages, followed = {}, {}, {}, {}
for record in next_argument do
  local stamp, cost = next_argument(), tonumber(next_argument())
  local pair, delivery = next_argument(), next_argument()
  if pair ~= '' and tonumber(redis.call('ZSCORE', keys.done, record) or 0) <= now then
    settle_pair(book, pair, delivery)
  end
  local paths = { read_path(next_argument, meters), read_path(next_argument, meters) }
  records[#records + 1] = record
  dones[#dones + 1] = forget_at
  dones[#dones + 1] = record
  if stamp ~= '' then
    messages[#messages + 1] = stamp
    messages[#messages + 1] = record
  end
  if #paths[1] + #paths[2] > 0 then
    followed[#followed + 1] = { message = message_name(record, stamp), cost = cost, paths = paths }
  end
end

check_rights(keys.done, retention)
forget(keys, now, newest_call, retention)
write_pairs(book)
in_pieces('ZADD', keys.done, dones)
redis.call('PEXPIRE', keys.done, milliseconds(retention))
in_pieces('ZADD', keys.message, messages)
redis.call('PEXPIRE', keys.message, milliseconds(lease + retention))
in_pieces('ZREM', keys.leased, records)
in_pieces('ZREM', keys.taken, records)
for _, event in ipairs(followed) do
  for _, path in ipairs(event.paths) do
    for _, meter in ipairs(path) do
      meter.algorithm.give_back(meter, event)
    end
  end
end
return now
