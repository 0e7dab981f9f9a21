-- usage.lua: how many slots are taken now. It writes nothing.
--
-- KEYS
--   1  calls   sorted set: call that granted something -> its time
--   2… meters  see read_meters
--
-- ARGV
--   lease (microseconds), meters (see read_meters)
--
-- Returns the slots taken of each limit, in the order of ARGV.

local now = deployment_time(KEYS[1])
local next_argument = reader(ARGV, 1)
local next_key = reader(KEYS, 1)
local meters = read_meters(next_argument, next_key, now, tonumber(ARGV[1]))
local reply = {}
for _, meter in ipairs(meters) do
  for _, limit in ipairs(meter.limits) do
    reply[#reply + 1] = meter.algorithm.used(read_once(meter), limit)
  end
end
return reply
