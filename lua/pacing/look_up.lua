-- look_up.lua: reserves the next look-up of posts, for all instances.
--
-- KEYS
--   1   calls    sorted set: nonce of a call that granted something -> its time
--   2   pauses   sorted set: channel -> end of its pause
--   3   lookups  sorted set: look-up -> its slot time
--
-- ARGV
--   look-ups in a window (0: any number), the window, longest wait, remaining pause of the look-ups known to the caller
--     times in microseconds; a look-up beyond the longest wait is not reserved
--
-- Returns 1 if the look-up is reserved, otherwise 0; the time until the look-up (microseconds).
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/destinations lib/window

local calls_key, pauses_key, lookups_key = KEYS[1], KEYS[2], KEYS[3]
local count, window, max_wait, known_pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local now = deployment_time(calls_key)
local slot_time = math.max(now + known_pause, recorded_time(pauses_key, LOOKUPS, now + MOST_AHEAD))
if count > 0 then
  slot_time = unused(lookups_key, math.max(slot_time, window_slots(lookups_key, count, window, now, now + max_wait + TOLERANCE)(0)))
end
slot_time = math.max(slot_time, now)
local wait = slot_time - now
if wait > max_wait then
  return { 0, wait }
end
if count > 0 then
  check_rights(lookups_key, wait + window)
  add_request(new_trimmer(), lookups_key, slot_time, window, now)
end
return { 1, wait }
