-- adopt_limits.lua: puts the limits of a bucket in force for an operator, although they may be older than the present limits.
-- decide.lua then rejects calls with versions before it.
--
-- KEYS
--   1   calls   sorted set: nonce of a call that granted something -> its time
--   2   limits  string: generation and revision of the limits in force, time of the change (see decide.lua)
--
-- ARGV
--   generation and revision that the operator saw in force, 0 and 0 for none
--   generation and revision to be put in force
--
-- Returns 1, and 0 without a change if the version in force is not the seen version.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local calls_key, limits_key = KEYS[1], KEYS[2]
local seen_generation, seen_revision = tonumber(ARGV[1]), tonumber(ARGV[2])
local generation, revision = tonumber(ARGV[3]), tonumber(ARGV[4])

local now = deployment_time(calls_key)
local in_force = load_numbers(limits_key) or { 0, 0 }
if in_force[1] ~= seen_generation or in_force[2] ~= seen_revision then
  return 0
end
save_numbers(limits_key, LIMITS_KEPT, generation, revision, now)
return 1
