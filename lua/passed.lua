-- passed.lua: counts the messages that left a stream without having been delivered to a consumer, since the consumer's position
-- was recorded last by any instance.
--
-- A position is the newest sequence of the stream that the consumer has passed, and the number of its deliveries. Each message
-- between two positions had one delivery or more if it was redelivered. The sequences that exceed the deliveries were skipped,
-- so the result is a lower bound.
--
-- KEYS
--   1   passed:…  string: sequence and number of deliveries of the newest position, nonce and result of the newest call that
--                 counted messages
--
-- ARGV
--   nonce, sequence, number of deliveries, retention of the position (microseconds)
--
-- Returns the number of skipped messages. A position before the recorded one changes nothing and returns 0. A retry
-- with the nonce after a lost reply returns the first number, unless another call has counted messages since.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local key = KEYS[1]
local nonce, sequence, deliveries, kept = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local known = load_numbers(key)
if known and known[3] == nonce then
  return known[4]
elseif known and (sequence < known[1] or deliveries < known[2]) then
  return 0
end
local skipped = known and math.max(0, sequence - known[1] - (deliveries - known[2])) or 0
if skipped > 0 or not known then
  save_numbers(key, kept, sequence, deliveries, nonce, skipped)
else
  save_numbers(key, kept, sequence, deliveries, known[3], known[4])
end
return skipped
