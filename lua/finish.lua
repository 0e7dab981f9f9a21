-- finish.lua: records that events were delivered. Repeating it changes nothing but how long that is remembered.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  leased   sorted set: record -> end of its lease
--   3  done     sorted set: record -> when it may be forgotten
--   4  message  sorted set: record -> stamp of its stored message
--
-- ARGV
--   lease, retention (microseconds), then for each event: record, stamp
--
-- Returns the time. A delivery counts as done whoever holds the lease: the message is out.
--
-- Errors: WRONGTYPE is raised before anything is written.

local calls_key, leased_key, done_key, message_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lease, retention = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = deployment_time(calls_key)
redis.call('ZCARD', leased_key)
redis.call('ZCARD', message_key)

local forget_at = integer(now + retention)
local records, dones, messages = {}, {}, {}
for argument = 3, #ARGV, 2 do
  local record, stamp = ARGV[argument], ARGV[argument + 1]
  records[#records + 1] = record
  dones[#dones + 1] = forget_at
  dones[#dones + 1] = record
  if stamp ~= '' then
    messages[#messages + 1] = stamp
    messages[#messages + 1] = record
  end
end

check_rights(done_key, retention)
in_pieces('ZADD', done_key, dones)
redis.call('PEXPIRE', done_key, milliseconds(retention))
in_pieces('ZADD', message_key, messages)
redis.call('PEXPIRE', message_key, milliseconds(lease + retention))
in_pieces('ZREM', leased_key, records)
return now
