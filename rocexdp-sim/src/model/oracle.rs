//! The oracle, memory half: who may read or write which byte now, and with what value.
//!
//! What RC promises of a stream: the target executes its messages once, in order, and a message's bytes in order too; so each
//! write must be the stream's next bytes, in the place that the message's list or key gives, within a region that is granted
//! at that moment. What a READ brings is what stood in the target memory at some time since all messages before it were
//! executed. An atomic executes once; what lands is what it found.
//!
//! Must not: know how an endpoint does it.

use rocexdp_proto::ids::PathMtu;
use rocexdp_proto::mem::{Access, Atomic, MemoryFault};
use rocexdp_proto::verbs::Status;

use super::program::{Setup, kind};
use super::state::{Msg, Service, State, Stream, place, position};

/// Why an access was refused by the model: the endpoint sees a fault, and the run fails.
const REFUSED: Result<(), MemoryFault> = Err(MemoryFault);

impl Stream {
    /// The next message of which the memory shows something.
    fn next_traceful(&self) -> usize {
        let skipped = self.msgs.iter().skip(self.cursor);
        self.cursor
            + skipped
                .take_while(|m| m.traceless() && m.bad.is_none())
                .count()
    }

    /// Goes over messages of which the memory shows nothing, up to `index`.
    fn skip_to(&mut self, index: usize) {
        while self.cursor < index {
            self.finish();
        }
    }

    /// The message at the cursor was executed.
    fn finish(&mut self) {
        if let Some(m) = self.msgs.get_mut(self.cursor) {
            m.executed = true;
        }
        self.cursor += 1;
        self.done = 0;
        self.ahead.clear();
    }

    /// READs from the cursor on see everything that was there before: their logs start at `lengths`, by target memory.
    fn readable(&mut self, lengths: &[usize], mem_of: impl Fn(&Msg) -> Option<usize>) {
        for m in self.msgs.iter_mut().skip(self.cursor) {
            if m.kind == kind::READ {
                if let Some(mem) = mem_of(m) {
                    m.since = lengths[mem];
                }
            } else if !m.traceless() {
                break;
            }
        }
    }

    /// As for [`may_place`], of the message at the cursor.
    fn may_place(&self, selective: bool, at: u32, len: u32, total: u32) -> bool {
        may_place((self.done, &self.ahead), selective, at, len, total)
    }

    /// Bytes `at..at + len` are there. True if that is the whole message.
    fn placed(&mut self, at: u32, len: u32, total: u32) -> bool {
        placed(&mut self.done, &mut self.ahead, at, len);
        self.done == total
    }

    /// Everything before message `index` must have been executed.
    pub fn reach(&mut self, index: usize) -> Result<(), String> {
        while self.cursor < index {
            let before = self.cursor;
            self.skip_to(self.next_traceful().min(index));
            if self.cursor == before {
                let m = &self.msgs[before];
                return Err(format!(
                    "message {before} (request {}, kind {}, {} B) was not executed: {} B are there",
                    m.wr, m.kind, m.len, self.done
                ));
            }
        }
        Ok(())
    }
}

/// Whether bytes `at..at + len` of a message of `total` may be written now, of which the first ones, up to a number, and some ranges
/// behind are there: the next ones; with selective repeat also ones behind a gap, but not the message's last. Each byte once.
fn may_place(
    (done, ahead): (u32, &[(u32, u32)]),
    selective: bool,
    at: u32,
    len: u32,
    total: u32,
) -> bool {
    let free = |(start, end): &(u32, u32)| at + len <= *start || *end <= at;
    let fits = if at == done {
        at + len <= total
    } else {
        selective && at > done && at + len < total
    };
    fits && ahead.iter().all(free)
}

/// Bytes `at..at + len` are there.
fn placed(done: &mut u32, ahead: &mut Vec<(u32, u32)>, at: u32, len: u32) {
    ahead.push((at, at + len));
    while let Some(i) = ahead.iter().position(|(start, _)| start == done) {
        *done = ahead.swap_remove(i).1;
    }
}

impl State {
    fn whose(&mut self, end: usize) -> Option<usize> {
        match self.receiving {
            Some((e, pair)) if e == end && pair < self.pairs.len() => Some(pair),
            _ => {
                self.wrong(|| format!("end {end} touches memory with no packet to any of its QPs"));
                None
            }
        }
    }

    /// Whether a message's key grants `len` bytes from its byte `at` on; gives the first byte's place.
    /// Over the QP of `pair`; by a window's key, if that may be in force.
    pub(super) fn granted(
        &self,
        target: usize,
        pair: usize,
        m: &Msg,
        at: u64,
        len: u64,
    ) -> Option<(usize, u64)> {
        let region = self.ends[target].regions.get(m.region?)?;
        let from = m.at.checked_add(at)?;
        let end = from.checked_add(len)?;
        let right = match m.grant {
            Some(grant) => {
                let g = self.ends[target].grants.get(grant)?;
                let over = g.over.is_none_or(|p| p == pair);
                let inside = from >= g.from && end <= g.from + g.len;
                over && inside && !g.gone && g.access.contains(m.needs())
            }
            None => end <= region.len && region.access.contains(m.needs()) && !region.foreign,
        };
        (region.live && right).then_some((region.mem, from))
    }

    /// Bytes of a packet.
    pub(super) fn mtu(&self) -> u32 {
        PathMtu::ALL[(self.setup.mtu as usize - 1).min(4)].bytes()
    }

    /// A packet's bytes into a receive buffer.
    pub fn receive_write(
        &mut self,
        end: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let Some(pair) = self.whose(end) else {
            return REFUSED;
        };
        if !self.is_reliable(pair) {
            if self.datagram_write(pair, end, offset, bytes) {
                return Ok(());
            }
            let what = self.arrival;
            self.wrong(|| {
                format!("end {end} pair {pair}: {} B are written at {offset} of the receive buffers, which is not the place of what comes, or other bytes: {what:?}", bytes.len())
            });
            return REFUSED;
        }
        let selective = self.setup.selective > 0;
        let shared = if self.shares() {
            self.shared_place(pair, end, offset)
        } else {
            None
        };
        let s = self.incoming(pair, end);
        let (cursor, done) = (s.next_traceful(), s.done);
        let message = s.msgs.get(cursor).filter(|m| m.kind <= kind::SEND_INV);
        let receive = message.and_then(|m| s.recvs.get(m.recv?));
        let own = receive.and_then(|r| position(&r.list, offset));
        let expected = shared.or(own);
        let len = bytes.len() as u32;
        let refused = message.cloned();
        let last = |at: u32, m: &Msg| at + len < m.len || self.may_invalidate(end, m);
        let endable = expected
            .zip(refused)
            .is_none_or(|((at, _), m)| last(at, &m));
        let s = self.incoming(pair, end);
        let message = s.msgs.get(cursor).filter(|m| m.kind <= kind::SEND_INV);
        let right = expected.is_some_and(|(at, room)| {
            len <= room
                && endable
                && message.is_some_and(|m| {
                    m.bad.is_none()
                        && s.may_place(selective, at, len, m.len)
                        && m.payload_is(at, bytes)
                })
        });
        let at = expected.map_or(0, |(at, _)| at);
        if !right {
            let what = message.map(|m| m.wr);
            self.wrong(|| {
                format!(
                    "end {end} pair {pair}: {} B are written at {offset} of the receive buffers, byte {at} of the message; the next is byte {done} of request {what:?}, or other bytes",
                    bytes.len()
                )
            });
            return REFUSED;
        }
        self.progress(pair, end, at, len);
        Ok(())
    }

    /// A packet's bytes into memory that peers reach.
    pub fn target_write(
        &mut self,
        end: usize,
        mem: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let Some(pair) = self.whose(end) else {
            return REFUSED;
        };
        if !self.is_reliable(pair) {
            if self.unreliable_write(pair, end, mem, offset, bytes) {
                self.poke(end, mem, offset, bytes);
                return Ok(());
            }
            let what = self.arrival;
            self.wrong(|| {
                format!("end {end} pair {pair}: {} B are written at {offset} of target memory {mem}, which is not the place of what comes, or other bytes, or not granted: {what:?}", bytes.len())
            });
            return REFUSED;
        }
        let selective = self.setup.selective > 0;
        let s = self.incoming(pair, end);
        let done = s.done;
        let message = s.msgs.get(s.next_traceful()).cloned();
        let len = bytes.len() as u32;
        // The message's byte that lies there.
        let at = message.as_ref().and_then(|m| offset.checked_sub(m.at));
        let at = at
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(u32::MAX / 2);
        let total = message.as_ref().map_or(0, |m| m.len);
        let placeable = s.may_place(selective, at, len, total);
        let right = message.as_ref().is_some_and(|m| {
            matches!(m.kind, kind::WRITE | kind::WRITE_IMM)
                && m.bad.is_none()
                && placeable
                && self.granted(end, pair, m, u64::from(at), u64::from(len)) == Some((mem, offset))
                && m.payload_is(at, bytes)
        });
        if !right {
            let what = message.map(|m| (m.wr, m.kind, m.at + u64::from(done)));
            self.wrong(|| {
                format!(
                    "end {end} pair {pair}: {} B are written at {offset} of target memory {mem}; the next is (request, kind, place) {what:?}, or other bytes, or not granted",
                    bytes.len()
                )
            });
            return REFUSED;
        }
        self.poke(end, mem, offset, bytes);
        self.progress(pair, end, at, len);
        Ok(())
    }

    /// Changes target memory, and keeps what stood there.
    pub fn poke(&mut self, end: usize, mem: usize, offset: u64, bytes: &[u8]) {
        let target = &mut self.ends[end].targets[mem];
        let from = offset as usize;
        if let Some(place) = target.bytes.get_mut(from..from + bytes.len()) {
            target.log.push((offset as u32, place.to_vec()));
            place.copy_from_slice(bytes);
        }
    }

    /// Bytes of the message at the cursor of what `end` receives are there.
    fn progress(&mut self, pair: usize, end: usize, at: u32, len: u32) {
        self.tally.bytes += u64::from(len);
        let s = self.incoming(pair, end);
        s.skip_to(s.next_traceful());
        let total = s.msgs.get(s.cursor).map_or(0, |m| m.len);
        if s.placed(at, len, total) {
            s.finish();
            self.let_read(pair, end);
        }
    }

    /// READs at the cursor of what `end` receives may be carried out from now on.
    pub fn let_read(&mut self, pair: usize, end: usize) {
        let lengths: Vec<usize> = self.ends[end].targets.iter().map(|t| t.log.len()).collect();
        let mems: Vec<usize> = self.ends[end].regions.iter().map(|r| r.mem).collect();
        self.incoming(pair, end)
            .readable(&lengths, |m| mems.get(m.region?).copied());
    }

    /// Bytes for a READ response.
    pub fn target_read(
        &mut self,
        end: usize,
        mem: usize,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let len = dst.len() as u64;
        let asked = (0..self.pairs.len()).any(|pair| {
            let generation = self.pairs[pair][end].generation;
            let s = &self.streams[pair][1 - end][generation];
            // One that has completed, too: it may have been asked for again.
            s.msgs.iter().any(|m| {
                // Of one that leaves its region, what is inside may be read: it is asked for in parts.
                let inside = offset.checked_sub(m.at);
                m.kind == kind::READ
                    && inside.is_some_and(|from| {
                        from + len <= u64::from(m.len)
                            && self.granted(end, pair, m, from, len) == Some((mem, offset))
                    })
            })
        });
        if !asked {
            self.wrong(|| {
                format!("end {end} reads {len} B at {offset} of target memory {mem}, which no READ of a peer asks for, or is not granted")
            });
            return REFUSED;
        }
        let from = offset as usize;
        dst.copy_from_slice(
            self.ends[end].targets[mem]
                .bytes
                .get(from..from + dst.len())
                .ok_or(MemoryFault)?,
        );
        Ok(())
    }

    /// An atomic of a peer.
    pub fn target_atomic(
        &mut self,
        end: usize,
        mem: usize,
        offset: u64,
        op: Atomic,
    ) -> Result<u64, MemoryFault> {
        let pair = self.whose(end).ok_or(MemoryFault)?;
        let s = self.incoming(pair, end);
        let cursor = s.next_traceful();
        let message = s.msgs.get(cursor).cloned();
        let right = message.as_ref().is_some_and(|m| {
            let same = match op {
                Atomic::CompareSwap { compare, swap } => {
                    m.kind == kind::COMPARE_SWAP && (compare, swap) == (m.a, m.b)
                }
                Atomic::FetchAdd(add) => m.kind == kind::FETCH_ADD && add == m.a,
                Atomic::Write(value) => {
                    m.kind == kind::ATOMIC_WRITE && m.payload_is(0, &value.to_ne_bytes())
                }
            };
            same && m.bad.is_none() && self.granted(end, pair, m, 0, 8) == Some((mem, offset))
        });
        if !right {
            let what = message.map(|m| (m.wr, m.kind, m.at));
            self.wrong(|| {
                format!("end {end} pair {pair}: {op:?} at {offset} of target memory {mem}; the next is (request, kind, place) {what:?}, or not granted")
            });
            return Err(MemoryFault);
        }
        let from = offset as usize;
        let word = self.ends[end].targets[mem].bytes.get(from..from + 8);
        let word: [u8; 8] = word.and_then(|w| w.try_into().ok()).ok_or(MemoryFault)?;
        let original = u64::from_ne_bytes(word);
        self.poke(end, mem, offset, &op.apply(original).to_ne_bytes());
        self.tally.bytes += 8;
        let s = self.incoming(pair, end);
        s.skip_to(cursor);
        if let Some(m) = s.msgs.get_mut(cursor) {
            m.original = Some(original);
        }
        s.finish();
        self.let_read(pair, end);
        Ok(original)
    }

    /// A FLUSH of a peer, which the endpoint carries out in its turn: behind the writes before it.
    pub fn target_flush(
        &mut self,
        end: usize,
        mem: usize,
        offset: u64,
        len: u64,
    ) -> Result<(), MemoryFault> {
        let pair = self.whose(end).ok_or(MemoryFault)?;
        let s = self.incoming(pair, end);
        let (from, to) = (s.cursor, s.next_traceful());
        let due = s.msgs.get(from..to).unwrap_or(&[]).to_vec();
        let right = due.iter().any(|m| {
            m.kind == kind::FLUSH
                && u64::from(m.len) == len
                && self.granted(end, pair, m, 0, len) == Some((mem, offset))
        });
        if right {
            return Ok(());
        }
        self.wrong(|| format!("end {end} pair {pair}: flush of {len} B at {offset} of target memory {mem}, which no FLUSH that is due asks for, or is not granted"));
        REFUSED
    }

    /// What a READ or an atomic of `end` brings.
    pub fn landing_write(
        &mut self,
        end: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), MemoryFault> {
        let Some(pair) = self.whose(end) else {
            return REFUSED;
        };
        let selective = self.setup.selective > 0;
        let s = self.outgoing(pair, end);
        while s
            .msgs
            .get(s.landing)
            .is_some_and(|m| !m.fetches() || m.landed == m.len)
        {
            s.landing += 1;
        }
        let message = s.msgs.get(s.landing).cloned();
        let len = bytes.len() as u32;
        let there = message.as_ref().and_then(|m| position(&m.land, offset));
        let at = there.map_or(0, |(at, _)| at);
        let right = message.as_ref().is_some_and(|m| {
            let done = (m.landed, &m.landed_ahead[..]);
            there.is_some_and(|(_, room)| len <= room)
                && may_place(done, selective, at, len, m.len)
                && (m.bad.is_none() || m.kind == kind::READ)
                && self.is_answer(1 - end, m, at, bytes)
        });
        if !right {
            let what =
                message.map(|m| (m.wr, m.kind, m.landed, place(&m.land, m.landed), m.original));
            self.wrong(|| {
                format!("end {end} pair {pair}: {} B land at {offset}; the next is (request, kind, byte, place, original) {what:?}, or other bytes: {:02x?}", bytes.len(), bytes.get(..8.min(bytes.len())))
            });
            return REFUSED;
        }
        self.tally.bytes += bytes.len() as u64;
        let s = self.outgoing(pair, end);
        let landing = s.landing;
        if let Some(m) = s.msgs.get_mut(landing) {
            placed(&mut m.landed, &mut m.landed_ahead, at, len);
        }
        Ok(())
    }

    /// Whether `bytes` may be what a request brings, from its byte `at` on.
    fn is_answer(&self, target: usize, m: &Msg, at: u32, bytes: &[u8]) -> bool {
        if m.kind != kind::READ {
            let part = at as usize;
            return m
                .original
                .is_some_and(|o| o.to_ne_bytes().get(part..part + bytes.len()) == Some(bytes));
        }
        let Some(region) = m.region.and_then(|r| self.ends[target].regions.get(r)) else {
            return false;
        };
        let memory = &self.ends[target].targets[region.mem];
        let from = (m.at + u64::from(at)) as usize;
        let Some(now) = memory.bytes.get(from..from + bytes.len()) else {
            return false;
        };
        if now == bytes {
            return true;
        }
        // What stood there at some time since: byte by byte, as a READ may see others' writes half done.
        let log = memory.log.get(m.since..).unwrap_or(&[]);
        bytes.iter().enumerate().all(|(i, b)| {
            now[i] == *b
                || log.iter().any(|(at, old)| {
                    let at = *at as usize;
                    (from + i).checked_sub(at).and_then(|j| old.get(j)) == Some(b)
                })
        })
    }

    /// Whether what `end` receives next is something that it may refuse, ending the connection.
    pub fn may_refuse(&mut self, pair: usize, end: usize) -> bool {
        if !self.is_reliable(pair) {
            return self.ends[end].was_gone[1];
        }
        let generation = self.pairs[pair][end].generation;
        let s = &self.streams[pair][1 - end][generation];
        for m in s.msgs.iter().skip(s.cursor) {
            if !self.refusals(end, pair, m).is_empty() {
                return true;
            }
            if !m.traceless() {
                break;
            }
        }
        // A READ is answered, or answered again, after what is behind it was executed.
        let mut reads = s.msgs.iter().filter(|m| m.kind == kind::READ);
        if reads.any(|m| !self.refusals(end, pair, m).is_empty()) {
            return true;
        }
        // A receive of no bytes leaves no trace, but its message may be too long, or the resources too few.
        let Setup {
            depth, resources, ..
        } = self.setup;
        depth > resources && s.msgs.iter().any(Msg::wants_response)
    }

    /// How the target may refuse a message that came over the QP of `pair`.
    pub fn refusals(&self, end: usize, pair: usize, m: &Msg) -> Vec<Status> {
        let mut all = Vec::new();
        if m.is_local() {
            return all;
        }
        if !qp_serves(self.setup.access, m) {
            all.push(Status::RemInvReqErr);
        }
        all.extend(m.bad);
        if m.kind <= kind::SEND_INV && self.too_long(end, pair, m) {
            all.push(Status::RemInvReqErr);
        }
        let served = match m.grant {
            Some(_) if m.kind == kind::SEND_INV => self.change_is_certain(m),
            Some(_) => self.window_serves(end, pair, m),
            None => {
                m.needs() == Access::NONE
                    || self.granted(end, pair, m, 0, u64::from(m.len)).is_some()
            }
        };
        let keyless = m.len == 0 && !matches!(m.kind, kind::FLUSH | kind::SEND_INV);
        if !served && !keyless {
            all.push(Status::RemAccessErr);
        }
        let gone = &self.ends[end].was_gone;
        let region = m.region.and_then(|r| self.ends[end].regions.get(r));
        if (m.consumes() && gone[1]) || region.is_some_and(|r| gone[3 + r.mem]) {
            all.push(Status::RemOpErr);
        }
        all
    }

    /// Whether a message may be longer than its receive request.
    fn too_long(&self, end: usize, pair: usize, m: &Msg) -> bool {
        if self.shares() {
            return self.ends[end].shared.shortest() < m.len;
        }
        let generation = self.pairs[pair][end].generation;
        let s = &self.streams[pair][1 - end][generation];
        let index = match self.service(pair) {
            Service::Reliable => m.recv,
            Service::Unreliable => Some(s.recv_head),
            // It completes so.
            Service::Datagram => None,
        };
        index
            .and_then(|n| s.recvs.get(n))
            .is_some_and(|r| r.room < m.len)
    }
}

/// Whether a QP with this access serves such a message at all.
#[must_use]
pub fn qp_serves(access: u64, m: &Msg) -> bool {
    let bit = match m.kind {
        kind::WRITE | kind::WRITE_IMM | kind::ATOMIC_WRITE => 2,
        kind::READ => 4,
        kind::COMPARE_SWAP | kind::FETCH_ADD => 8,
        kind::FLUSH => 256,
        _ => return true,
    };
    access & bit != 0
}
