-- update.lua: reserves an update of a message for one of its states, and begins it when it is due, for all instances.
--
-- A message has one reserved update, whichever of its states asks. After a newer state has asked, an older one is obsolete. Two
-- states of a message are never under way at once: a request that is still being made might arrive last.
--
-- KEYS
--   1   calls             sorted set: nonce of a call that granted something -> its time
--   2   pauses            sorted set: channel -> end of its pause
--   3   updates           sorted set: update -> its slot time
--   4   update:<message>  string: see lib/updates.lua
--
-- ARGV
--   updates in a window (0: any number), the window, remaining pause of the updates known to the caller
--   order of the state, longest wait, time within which a due update begins, longest duration of a request
--     times in microseconds; an update beyond the longest wait is not reserved
--
-- Returns 0 if the caller asks again after the time, 1 if the update begins after the time, 2 if the state is obsolete; the time
-- (microseconds).
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

--@include lib/records lib/destinations lib/window lib/updates

-- How late a reserved update may begin. Later it needs another slot time.
local LATE = SECOND

local calls_key, pauses_key, updates_key, message_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local count, window, known_pause = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local order, max_wait, within, duration = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local now = deployment_time(calls_key)
local message = read_message(message_key)
local pause_end = math.max(known_pause > 0 and now + known_pause or 0, recorded_time(pauses_key, UPDATES, now + MOST_AHEAD))
local latest = now + max_wait + TOLERANCE -- a later time was written by a clock that had run ahead
local newest = redis.call('ZRANGE', updates_key, -1, -1) -- shows WRONGTYPE and NOPERM, whichever answer follows
if order < message.newest or order <= message.done then
  return { 2, 0 }
elseif message.running > message.done and message.running ~= order
  and message.began + duration > now and message.began <= now + within + TOLERANCE then
  return { 0, math.min(message.began + duration - now, SECOND) }
end

local slot_time, is_reserved = message.slot, true
if slot_time < now - LATE or slot_time > latest or slot_time < pause_end and now < pause_end then
  slot_time, is_reserved = math.max(now, pause_end), false
  if count > 0 then
    slot_time = unused(updates_key, math.max(slot_time, newest[1] and window_slots(updates_key, count, window, now, latest)(0) or 0))
  end
end
local wait = math.max(slot_time - now, 0)
local begins = wait <= within
if wait > max_wait then
  return { 0, wait }
end
message.newest, message.slot = order, slot_time
if begins then
  message.slot, message.running, message.began = 0, order, now + wait
end
if count > 0 and not is_reserved then
  redis.call('SET', message_key, '', message.is_known and 'NX' or 'XX') -- shows a missing right
  check_rights(updates_key, wait + window)
  add_request(new_trimmer(), updates_key, slot_time, window, now)
end
write_message(message_key, message, wait)
return { begins and 1 or 0, wait }
