-- passed.lua: tells how many messages a consumer has passed over in its stream since its position was told last, by any instance:
-- they have left the stream without having been delivered.
--
-- A position is how far the consumer has come in the stream and how many deliveries it has made. Between two positions it has made
-- as many deliveries as there were messages, and more where some were delivered again. So the number is a lower bound.
--
-- KEYS
--   1  passed:…   string: stream's sequence and number of deliveries, as they were told last
--
-- ARGV
--   stream's sequence, number of deliveries, how long the position is kept (microseconds)
--
-- Returns the number. A position that lies before the one that is known changes nothing.

local key = KEYS[1]
local sequence, deliveries, kept = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local known = load_numbers(key)
if known and (sequence < known[1] or deliveries < known[2]) then
  return 0
end
save_numbers(key, kept, sequence, deliveries)
return known and math.max(0, sequence - known[1] - (deliveries - known[2])) or 0
