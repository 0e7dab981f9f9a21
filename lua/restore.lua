-- restore.lua: records admissions that were made without Redis, with their own times.
--
-- They stand whether the limits had room or not. An event that is recorded already takes no second slot. Pairs are opened and
-- ended as by finish.lua, and of those whose message is still on its way that is noted, as by announce.lua.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  leased       sorted set: record -> end of its lease
--   3  done         sorted set: record -> when it may be forgotten
--   4  message      sorted set: record -> stamp of its stored message
--   5  taken        sorted set: record -> time of admission, where a meter needs it
--   6  pairs        hash: see pair_book
--   7  pairs:until  sorted set: see pair_book
--   8… meters       see read_meters
--
-- ARGV
--   lease, retention, how long a pair is kept (microseconds), meters (see read_meters)
--   for each event: record, stamp, age of its admission (microseconds), cost, delivered ("1" or "0"), field of its pair
--   or '', delivery (see settle_pair), number of its guarantee, path (see read_path)
--
-- Errors: WRONGTYPE is raised before anything is written.
--
-- Returns the time; the leases of the events that are not delivered yet end a lease after it.

local calls_key, leased_key, done_key, message_key, taken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 7)
local lease, retention = tonumber(next_argument()), tonumber(next_argument())
local pairs_kept = tonumber(next_argument())

redis.call('ZCARD', leased_key)
redis.call('ZCARD', done_key)
redis.call('ZCARD', message_key)
redis.call('ZCARD', taken_key)
local now = deployment_time(calls_key)
local meters = read_meters(next_argument, next_key, now, lease)
for _, meter in ipairs(meters) do
  read_once(meter)
end

local book = pair_book(KEYS[6], KEYS[7], now, pairs_kept)
local leases, dones, messages, delivered_records, not_done, times = {}, {}, {}, {}, {}, {}
local admissions, counted = {}, {}
for record in next_argument do
  local stamp, at = next_argument(), now - tonumber(next_argument())
  local event = { record = record, at = at, cost = tonumber(next_argument()), delivered = next_argument() == '1' }
  local pair, delivery = next_argument(), next_argument()
  event.guarantee, event.path = tonumber(next_argument()), read_path(next_argument, meters)
  event.name, event.message = log_name(record, stamp), message_name(record, stamp)
  event.other = event.message
  local done_until = tonumber(redis.call('ZSCORE', done_key, record) or 0)
  local lease_end = tonumber(redis.call('ZSCORE', leased_key, record) or 0)
  local is_done = done_until > now
  local known = is_done or lease_end > now - retention
  if not known and not counted[record] then
    admissions[#admissions + 1] = event
    for _, meter in ipairs(event.path) do
      if meter.algorithm.times_admissions then
        times[#times + 1] = integer(at)
        times[#times + 1] = record
        break
      end
    end
  end
  counted[record] = true
  if event.delivered then
    if pair ~= '' and not is_done then
      settle_pair(book, pair, delivery)
    end
    dones[#dones + 1] = integer(now + retention)
    dones[#dones + 1] = record
    delivered_records[#delivered_records + 1] = record
  elseif not is_done then
    announce_pair(book, pair, record)
    leases[#leases + 1] = integer(now + lease)
    leases[#leases + 1] = record
    not_done[#not_done + 1] = record -- what is left of an older event
  end
  if stamp ~= '' and (event.delivered or not known) then
    messages[#messages + 1] = stamp
    messages[#messages + 1] = record
  end
end

check_rights(leased_key, lease + retention)
for _, meter in ipairs(meters) do
  if meter.algorithm.trim then
    meter.algorithm.trim(meter)
  end
end
write_pairs(book)
in_pieces('ZREM', done_key, not_done)
for _, event in ipairs(admissions) do
  for _, meter in ipairs(event.path) do
    meter.algorithm.restore(meter, event, event.at)
    meter.changed = true
  end
end
for _, meter in ipairs(meters) do
  if meter.changed then
    meter.algorithm.write(meter)
  end
end
in_pieces('ZADD', taken_key, times)
redis.call('PEXPIRE', taken_key, milliseconds(lease + retention))
in_pieces('ZADD', message_key, messages)
redis.call('PEXPIRE', message_key, milliseconds(lease + retention))
in_pieces('ZADD', leased_key, leases)
redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
in_pieces('ZADD', done_key, dones)
redis.call('PEXPIRE', done_key, milliseconds(retention))
in_pieces('ZREM', leased_key, delivered_records)
return now
