-- restore.lua: records admissions that were made without Redis, with their own times.
--
-- They stand whether the limits had room or not. An event that is recorded already takes no second slot. Pairs are opened and
-- ended as by finish.lua, and of those whose message is still on its way that is noted, as by announce.lua.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  leased       sorted set: record -> end of its lease (see parts/doubt.lua)
--   3  done         sorted set: record -> when it may be forgotten
--   4  message      sorted set: record -> stamp of its stored message
--   5  taken        sorted set: record -> time of admission, where a meter needs it
--   6… books of pairs, see read_books; then meters, see read_meters
--
-- ARGV
--   lease, retention, how long a pair is kept (microseconds), books (see read_books), meters (see read_meters)
--   for each event: record, stamp, age of its admission (microseconds), cost, what became of it (see below), whether it is
--   in doubt ("1" or "0"), number of its book, field of its pair or '', delivery (see settle_pair), number of its guarantee, path (see read_path)
--
-- Errors: WRONGTYPE is raised before anything is written.
--
-- Returns the time; the leases of the events that are not delivered yet end a lease after it.

local UNDER_WAY_STILL, DELIVERED, RELEASED = '0', '1', '2'

local calls_key, leased_key, done_key, message_key, taken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local next_argument = reader(ARGV, 0)
local next_key = reader(KEYS, 5)
local lease, retention = tonumber(next_argument()), tonumber(next_argument())
local pairs_kept = tonumber(next_argument())

redis.call('ZCARD', leased_key)
redis.call('ZCARD', done_key)
redis.call('ZCARD', message_key)
redis.call('ZCARD', taken_key)
local now = deployment_time(calls_key)
local books = read_books(next_argument, next_key, now, pairs_kept)
local meters = read_meters(next_argument, next_key, now, lease)
for _, meter in ipairs(meters) do
  read_once(meter)
end

local leases, dones, messages, delivered_records, not_done, times = {}, {}, {}, {}, {}, {}
local admissions, counted = {}, {}
for record in next_argument do
  local stamp, at = next_argument(), now - tonumber(next_argument())
  local event = { record = record, at = at, cost = tonumber(next_argument()) }
  local became, in_doubt = next_argument(), next_argument() == '1'
  event.delivered = became ~= UNDER_WAY_STILL -- as far as slots go that follow a delivery
  local book, pair, delivery = books[tonumber(next_argument())], next_argument(), next_argument()
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
  if became == DELIVERED then
    if book and not is_done then
      settle_pair(book, pair, delivery)
    end
    if not is_done then
      dones[#dones + 1] = integer(now + retention)
      dones[#dones + 1] = record
    end
    delivered_records[#delivered_records + 1] = record
    delivered_records[#delivered_records + 1] = doubt_of(record)
  elseif not is_done then
    -- A lease that has not ended is perhaps of this very call, which is repeated because its reply was lost.
    if known and lease_end <= now then
      in_doubt = in_doubt or ended_in_doubt(leased_key, record, lease_end)
    end
    announce_pair(book, pair, record)
    if became ~= RELEASED or lease_end <= now then
      leases[#leases + 1] = became == RELEASED and released(now, in_doubt) or integer(now + lease)
      leases[#leases + 1] = record
    end
    if in_doubt then
      leases[#leases + 1] = integer(now + lease)
      leases[#leases + 1] = doubt_of(record)
    end
    not_done[#not_done + 1] = record -- what is left of an older event
  end
  if stamp ~= '' and (became == DELIVERED or not known) then
    messages[#messages + 1] = stamp
    messages[#messages + 1] = record
  end
end

check_rights(leased_key, lease + retention)
local trim = new_trimmer()
for _, meter in ipairs(meters) do
  if meter.algorithm.trim then
    meter.algorithm.trim(meter, trim)
  end
end
write_books(books)
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
