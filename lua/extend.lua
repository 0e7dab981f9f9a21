-- extend.lua: renews the leases that the caller still holds, or ends them.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2  leased   sorted set: record -> end of its lease
--
-- ARGV
--   lease (microseconds; 0 releases: the event may be taken over at once), retention (microseconds)
--   for each event: record, the end of the lease as the caller knows it
--
-- Returns the new end, then 1 or 0 for each event: 0 if the lease is no longer the caller's. Until the end that the
-- caller knows, nobody else can have it: a later end is of this very call, which is repeated because its reply was lost.

local calls_key, leased_key = KEYS[1], KEYS[2]
local lease, retention = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = deployment_time(calls_key)
local lease_end = integer(now + lease)
local reply, renewed = { now + lease }, {}
for argument = 3, #ARGV, 2 do
  local current, known = redis.call('ZSCORE', leased_key, ARGV[argument]), tonumber(ARGV[argument + 1])
  current = current and tonumber(current)
  local held = current and (current == known or current > known and known > now)
  if held then
    renewed[#renewed + 1] = lease_end
    renewed[#renewed + 1] = ARGV[argument]
  end
  reply[#reply + 1] = held and 1 or 0
end

if #renewed > 0 then
  check_rights(leased_key, lease + retention)
  in_pieces('ZADD', leased_key, renewed)
  redis.call('PEXPIRE', leased_key, milliseconds(lease + retention))
end
return reply
