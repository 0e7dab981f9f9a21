-- restore.lua: records admissions that were made without Redis, with their own times.
--
-- They stand whether the limits had room or not. An event that is recorded already takes no second slot.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  leased   sorted set: record -> end of its lease
--   3  done     sorted set: record -> when it may be forgotten
--   4  message  sorted set: record -> stamp of its stored message
--   5… logs     sorted sets of the nodes on the events' paths
--
-- ARGV
--   lease, retention (microseconds)
--   number of logs; for each its longest window (microseconds)
--   for each event: record, stamp, age of its admission (microseconds), cost, delivered ("1" or "0"),
--   number of logs; for each: its index, from 1
--
-- Errors: WRONGTYPE is raised before anything is written.
--
-- Returns the time; the leases of the events that are not delivered yet end a lease after it.

local calls_key, leased_key, done_key, message_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local KEYS_BEFORE_LOGS = 4

local lease, retention = tonumber(ARGV[1]), tonumber(ARGV[2])
local position = 2
local function next_argument()
  position = position + 1
  return ARGV[position]
end

local logs = {}
for l = 1, tonumber(next_argument()) do
  logs[l] = { key = KEYS[KEYS_BEFORE_LOGS + l], window = tonumber(next_argument()), slots = {} }
  redis.call('ZCARD', logs[l].key) -- a key of the wrong type must be found before anything is written
end
redis.call('ZCARD', leased_key)
redis.call('ZCARD', done_key)
redis.call('ZCARD', message_key)

local now = deployment_time(calls_key)
local leases, dones, messages, delivered_records, not_done = {}, {}, {}, {}, {}
local counted = {}
while position < #ARGV do
  local record, stamp = next_argument(), next_argument()
  local at = now - tonumber(next_argument())
  local cost, delivered = tonumber(next_argument()), next_argument() == '1'
  local done_until = tonumber(redis.call('ZSCORE', done_key, record) or 0)
  local lease_end = tonumber(redis.call('ZSCORE', leased_key, record) or 0)
  local is_done = done_until > now
  local known = is_done or lease_end > now - retention
  local name, other = log_names(record, stamp)
  for _ = 1, tonumber(next_argument()) do
    local log = logs[tonumber(next_argument())]
    if not known and not counted[record] and at > now - log.window then
      for slot = 1, cost do
        log.slots[#log.slots + 1] = { at = integer(at), name = slot_member(name, slot), other = slot_member(other, slot) }
      end
    end
  end
  counted[record] = true
  if delivered then
    dones[#dones + 1] = integer(now + retention)
    dones[#dones + 1] = record
    delivered_records[#delivered_records + 1] = record
  elseif not is_done then
    leases[#leases + 1] = integer(now + lease)
    leases[#leases + 1] = record
    not_done[#not_done + 1] = record -- what is left of an older event
  end
  if stamp ~= '' and (delivered or not known) then
    messages[#messages + 1] = stamp
    messages[#messages + 1] = record
  end
end

check_rights(leased_key, lease + retention)
for _, log in ipairs(logs) do
  redis.call('ZREMRANGEBYSCORE', log.key, '-inf', integer(now - log.window))
end
in_pieces('ZREM', done_key, not_done)
for _, log in ipairs(logs) do
  for _, slot in ipairs(log.slots) do
    if redis.call('ZADD', log.key, 'NX', slot.at, slot.name) == 0 then
      redis.call('ZADD', log.key, 'NX', slot.at, slot.other)
    end
  end
  redis.call('PEXPIRE', log.key, milliseconds(log.window + TOLERANCE))
end
in_pieces('ZADD', message_key, messages)
redis.call('PEXPIRE', message_key, milliseconds(lease + retention))
in_pieces('ZADD', leased_key, leases)
redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
in_pieces('ZADD', done_key, dones)
redis.call('PEXPIRE', done_key, milliseconds(retention))
in_pieces('ZREM', leased_key, delivered_records)
return now
