-- announce.lua: notes that events which open pairs are being delivered, so that what resolves them waits for the outcome.
--
-- KEYS
--   1  calls        sorted set: call that granted something -> its time
--   2  pairs        hash: see pair_book
--   3  pairs:until  sorted set: see pair_book
--
-- ARGV
--   how long a pair is kept (microseconds)
--   for each event: record, pair
--
-- Returns the time. A note counts for as long as the event is leased, so nobody takes it back. Of several events of one pair
-- the last is noted.
--
-- Errors: WRONGTYPE and NOPERM are raised before anything is written.

local next_argument = reader(ARGV, 0)
local kept = tonumber(next_argument())
local now = deployment_time(KEYS[1])
local book = pair_book(KEYS[2], KEYS[3], now, kept)
for record in next_argument do
  announce_pair(book, next_argument(), record)
end
if #book.values > 0 then
  check_rights(KEYS[3], kept)
  write_pairs(book)
end
return now
