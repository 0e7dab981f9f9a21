-- usage.lua: how many slots are taken now. It writes nothing.
--
-- KEYS
--   1  calls    sorted set: call that granted something -> its time
--   2… logs     sorted sets
--
-- ARGV
--   for each log: number of limits; for each: window (microseconds)
--
-- Returns the slots taken in each limit's window, in the order of ARGV.

local now = deployment_time(KEYS[1])
local upto = integer(now + TOLERANCE)
local reply, position = {}, 0
for k = 2, #KEYS do
  position = position + 1
  for _ = 1, tonumber(ARGV[position]) do
    position = position + 1
    reply[#reply + 1] = redis.call('ZCOUNT', KEYS[k], '(' .. integer(now - tonumber(ARGV[position])), upto)
  end
end
return reply
