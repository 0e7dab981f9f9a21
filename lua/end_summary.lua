-- end_summary.lua: forgets a summary that was posted or given up, or has it claimed again later.
--
-- KEYS
--   1  calls  sorted set: call that granted something -> its time
--   2  drops  hash: category and line feed -> the summary that was claimed, see claim_summary.lua
--   3  due    sorted set: field of drops -> when it is due
--
-- ARGV
--   category, claim, again: time after which it is claimed again, 0 if it is over; kept (both microseconds)
--
-- Returns 1, or 0 if that summary is over already. It counts as over whoever has the lease: the message is out.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is changed.

local calls_key, drops_key, due_key = KEYS[1], KEYS[2], KEYS[3]
local field, claim, again, kept = ARGV[1] .. '\n', ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now = deployment_time(calls_key)
redis.call('ZCARD', due_key)
local text = redis.call('HGET', drops_key, field)
if not text or string.match(text, '^%d+') ~= claim then
  return 0
end

check_rights(due_key, kept)
if again > 0 then
  redis.call('ZADD', due_key, 'XX', integer(now + again), field)
else
  redis.call('HDEL', drops_key, field)
  redis.call('ZREM', due_key, field)
end
return 1
