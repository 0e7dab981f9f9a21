-- pairs.lua: pairs of a firing event and the resolved event that ends it.
--
-- Each first-level category has a book of pairs, so that one category cannot displace the pairs of another. A book is a hash,
-- field -> value, and a sorted set, field -> when the field expires. A field is the name of a pair or, for a resolved event
-- that has taken its pair, a line feed and the event key. The first byte of a value is its kind:
--   =  the pair is open: see open_text
--   ~  the message of the pair is being delivered: event key of the firing event
--   @  the firing event waits for a slot: when it comes back, a blank, its event key

local OPEN, UNDER_WAY, WAITING = '=', '~', '@'

-- How many fields a book may have. Beyond that, the fields that expire first are removed.
local MOST_PAIRS = 50000

-- Returns a book. A call collects its changes in the book and writes them with write_book.
local function pair_book(key, until_key, now, kept)
  return { key = key, until_key = until_key, now = now, kept = kept, entries = {}, values = {}, expiries = {}, removed = {} }
end

-- Reads the books of a call: their number from ARGV, two keys for each from KEYS. An event gives the number of its book, or 0.
local function read_books(next_argument, next_key, now, kept)
  local books = {}
  for b = 1, tonumber(next_argument()) do
    local key = next_key()
    books[b] = pair_book(key, next_key(), now, kept)
  end
  return books
end

-- Returns a field that has not expired, with the changes of this call, or nil.
local function read_pair(book, field)
  local entry = book.entries[field]
  if entry == nil then
    local value = redis.call('HGET', book.key, field)
    local expires = tonumber(redis.call('ZSCORE', book.until_key, field))
    entry = value and expires and expires > book.now and { value = value, expires = expires }
    book.entries[field] = entry or false
  end
  return entry or nil
end

local function put_pair(book, field, value, expires)
  book.entries[field] = { value = value, expires = expires }
  book.values[#book.values + 1] = field
  book.values[#book.values + 1] = value
  book.expiries[#book.expiries + 1] = integer(expires)
  book.expiries[#book.expiries + 1] = field
end

local function remove_pair(book, field)
  book.entries[field] = false
  book.removed[#book.removed + 1] = field
end

-- Returns the value of an entry behind its kind, or nil if the entry is of another kind.
local function pair_text(entry, kind)
  return entry and string.sub(entry.value, 1, 1) == kind and string.sub(entry.value, 2) or nil
end

-- Returns when the waiting event of a pair comes back, and its event key; nil if no event waits.
local function awaited(entry)
  local time, event_key = string.match(pair_text(entry, WAITING) or '', '^(%d+) (.*)$')
  return tonumber(time), event_key
end

-- An open pair has the version of its newest message, the receipt of its first message and, if there were more, the receipt of
-- the newest message.
local function open_text(version, first, newest)
  return OPEN .. version .. ' ' .. #first .. ' ' .. first .. newest
end

local function read_open(entry)
  local version, length, receipts = string.match(pair_text(entry, OPEN) or '', '^(%d+) (%d+) (.*)$')
  if version then
    return version, string.sub(receipts, 1, tonumber(length)), string.sub(receipts, tonumber(length) + 1)
  end
end

-- Returns the field for a resolved event that has taken its pair.
local function taken_pair(event_key)
  return '\n' .. event_key
end

-- Records that the message of a pair is being delivered, unless the pair is open. Does nothing without a book.
local function announce_pair(book, pair, event_key)
  if book and not pair_text(read_pair(book, pair), OPEN) then
    put_pair(book, pair, UNDER_WAY .. event_key, book.now + book.kept)
  end
end

-- Records a delivery: version of the stored message, a blank, the receipt. A delivered firing event opens its pair. A delivered
-- resolved event removes the pair that it took. The field is the name of the pair, or see taken_pair. The caller must not
-- repeat this for a delivery: the pair may have been resolved since.
local function settle_pair(book, field, delivery)
  local entry = read_pair(book, field)
  if string.sub(field, 1, 1) ~= '\n' then
    local version, receipt = string.match(delivery, '^(%d+) (.*)$')
    local newest, first = read_open(entry)
    if not first then
      put_pair(book, field, open_text(version, receipt, ''), book.now + book.kept)
    elseif tonumber(version) > tonumber(newest) then
      put_pair(book, field, open_text(version, first, receipt), entry.expires)
    end
  elseif entry then
    remove_pair(book, field)
  end
end

-- Writes the changes of a book. Removes fields that have expired or exceed MOST_PAIRS. The commands that change nothing come
-- first, so that missing rights show before anything is written.
local function write_book(book)
  if #book.values + #book.removed == 0 then
    return
  end
  redis.call('ZREM', book.until_key, '')
  redis.call('ZADD', book.until_key, 'XX', 0, '')
  redis.call('HDEL', book.key, '')
  in_pieces('HSET', book.key, book.values)
  in_pieces('ZADD', book.until_key, book.expiries)
  in_pieces('HDEL', book.key, book.removed)
  in_pieces('ZREM', book.until_key, book.removed)

  local expired = redis.call('ZCOUNT', book.until_key, '-inf', integer(book.now))
  local surplus = math.min(math.max(expired, redis.call('ZCARD', book.until_key) - MOST_PAIRS), PIECE)
  if surplus > 0 then
    local forgotten = redis.call('ZRANGE', book.until_key, 0, surplus - 1)
    redis.call('HDEL', book.key, unpack(forgotten))
    redis.call('ZREM', book.until_key, unpack(forgotten))
  end
  local last = redis.call('ZRANGE', book.until_key, -1, -1, 'WITHSCORES')[2]
  if last then
    local kept = milliseconds(tonumber(last) - book.now)
    redis.call('PEXPIRE', book.key, kept)
    redis.call('PEXPIRE', book.until_key, kept)
  end
end

local function write_books(books)
  for _, book in ipairs(books) do
    write_book(book)
  end
end
