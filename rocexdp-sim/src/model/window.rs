//! The oracle, window half: which key of a memory window lets whom reach what, as far as can be told.
//!
//! Each binding that was ever asked for is a [`Grant`]. It may be in force from when it was posted, and is for sure once it has
//! completed; it may be gone from when its end was posted, and is for sure once that has completed (or the message that
//! invalidates it has). A key that is gone for sure never touches memory; one that is in force for sure is never refused. Work
//! queues are in order, so what a window's next operation comes to is known while they all stand in one queue; where two race,
//! or a queue was flushed, either may be (`sure` is false), until the window is freed.
//!
//! Must not: know how an endpoint does it.

use rocexdp_proto::ids::RKey;
use rocexdp_proto::mem::Access;
use rocexdp_proto::verbs::{SendOp, Status};

use super::connect::access;
use super::program::{Args, kind, mistake};
use super::state::{Msg, SLOTS, State, TARGET_LEN, WINDOWS};

/// A memory window that was allocated once.
#[derive(Clone, Copy, Debug)]
pub struct WindowInfo {
    /// Its key once all that was posted is done.
    pub key: u32,
    /// Type 2.
    pub type2: bool,
    /// In another protection domain than the QPs.
    pub foreign: bool,
    /// The grant that is in force once all that was posted is done.
    pub bound: Option<usize>,
    /// Whether those two are certain.
    pub sure: bool,
    /// The queue that operations on it stand in: sender's pair, end and generation.
    queue: (usize, usize, usize),
    /// Of them, not completed.
    pending: u32,
}

/// A binding.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// The window, among all that the end ever had.
    pub window: usize,
    /// The key.
    pub key: u32,
    /// The region, among all that the end ever had.
    pub region: usize,
    /// First byte in it.
    pub from: u64,
    /// Bytes.
    pub len: u64,
    /// What it allows.
    pub access: Access,
    /// Type 2: the pair of the QP over which alone it may be used.
    pub over: Option<usize>,
    /// In force for sure, since then.
    since: Option<u64>,
    /// May be gone.
    ending: bool,
    /// Gone for sure.
    pub gone: bool,
}

/// What a message does to a window.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The end whose window it is, and the window among all that the end ever had.
    pub end: usize,
    /// The window.
    pub window: usize,
    /// The key that the operation names, which is gone when it has succeeded.
    pub old: u32,
    /// Bind: what it grants; `None`: nothing, length 0.
    pub grant: Option<usize>,
    /// Bind: the new key.
    pub new: u32,
    /// It can't fail.
    pub certain: bool,
}

impl State {
    /// A window was allocated.
    pub fn window(&mut self, end: usize, slot: usize, key: u32, type2: bool, foreign: bool) {
        let own = &mut self.ends[end];
        own.window_slots[slot] = Some(own.windows.len());
        own.windows.push(WindowInfo {
            key,
            type2,
            foreign,
            bound: None,
            sure: true,
            queue: (0, 0, 0),
            pending: 0,
        });
    }

    /// A window was freed.
    pub fn window_freed(&mut self, end: usize, slot: usize) {
        let own = &mut self.ends[end];
        let Some(window) = own.window_slots[slot].take() else {
            return;
        };
        for grant in own.grants.iter_mut().filter(|g| g.window == window) {
            grant.gone = true;
        }
        if let Some(w) = own.windows.get_mut(window) {
            w.sure = false;
        }
    }

    /// A QP was destroyed: what was bound over it alone is not bound any more.
    pub fn windows_of_qp_gone(&mut self, pair: usize, end: usize) {
        let own = &mut self.ends[end];
        for (i, grant) in own.grants.iter_mut().enumerate() {
            if grant.over != Some(pair) || grant.gone {
                continue;
            }
            grant.gone = true;
            if let Some(w) = own.windows.get_mut(grant.window)
                && w.bound == Some(i)
            {
                w.bound = None;
            }
        }
    }

    /// A queue has lost what stood in it: whether that was carried out can't be told.
    pub fn windows_unsure(&mut self, pair: usize, sender: usize) {
        let generation = self.pairs[pair][sender].generation;
        for end in &mut self.ends {
            for w in &mut end.windows {
                w.sure &= w.pending == 0 || w.queue != (pair, sender, generation);
            }
        }
    }

    /// A grant of a window slot, the `age`-th newest.
    fn grant_of(&self, end: usize, slot: u64, age: u64) -> Option<usize> {
        let window = self.ends[end].window_slots[slot as usize % WINDOWS]?;
        let mut grants = self.ends[end].grants.iter().enumerate().rev();
        let mut of = grants.by_ref().filter(|(_, g)| g.window == window);
        of.nth(age as usize).map(|(i, _)| i)
    }

    /// The grant that a request names: that of its window, or, unless it is meant to be odd, of the first window from there on
    /// that serves.
    fn choose(
        &self,
        target: usize,
        a: &Args,
        odd: bool,
        serves: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let first = a.window.checked_sub(1)?;
        if odd {
            return self.grant_of(target, first, a.age);
        }
        let mut slots = first..first + WINDOWS as u64;
        slots.find_map(|slot| self.grant_of(target, slot, 0).filter(|g| serves(*g)))
    }

    /// An operation on a window is being posted: it stands in this queue.
    fn queued(&mut self, end: usize, window: usize, queue: (usize, usize, usize)) {
        if let Some(w) = self.ends[end].windows.get_mut(window) {
            w.sure &= w.pending == 0 || w.queue == queue;
            w.queue = queue;
            w.pending += 1;
        }
    }

    /// Whether a grant is in force for sure, over the QP of `pair`, and was when `m` was posted.
    fn in_force(&self, end: usize, pair: usize, grant: usize, posted: u64) -> bool {
        let Some(g) = self.ends[end].grants.get(grant) else {
            return false;
        };
        let live = self.ends[end].regions.get(g.region).is_some_and(|r| r.live);
        live && !g.gone
            && !g.ending
            && g.since.is_some_and(|t| t <= posted)
            && g.over.is_none_or(|p| p == pair)
    }

    /// Lets a message name a window's key instead of a region's, where that makes sense or is meant not to.
    pub(super) fn through_window(&mut self, pair: usize, end: usize, a: &Args, m: &mut Msg) {
        let target = 1 - end;
        if m.bad == Some(Status::LocLenErr) {
            return;
        }
        let odd = matches!(a.bad, mistake::AS_IT_IS | mistake::RANGE);
        let serves = |index: usize| {
            let g = self.ends[target].grants.get(index);
            let fits = |g: &Grant| g.len >= u64::from(m.len) + 8 && g.access.contains(m.needs());
            g.is_some_and(fits) && self.in_force(target, pair, index, self.now)
        };
        let Some(index) = self.choose(target, a, odd, serves) else {
            return;
        };
        let Some(g) = self.ends[target].grants.get(index).copied() else {
            return;
        };
        m.grant = Some(index);
        m.region = Some(g.region);
        m.bad = None;
        let room = g.len.saturating_sub(u64::from(m.len));
        m.at = g.from + a.at % (room + 1);
        if a.bad == mistake::RANGE && m.len > 0 {
            // Out of the window, not of its region.
            m.at = (g.from + g.len).saturating_sub(u64::from(m.len) / 2);
        }
        if m.is_atomic() {
            m.at = (m.at + 7) & !7;
        }
        m.at = m.at.min(u64::from(TARGET_LEN) - u64::from(m.len));
        self.tally.windows[usize::from(odd)] += 1;
    }

    /// Whether the message's key, a window's, can't be refused.
    pub(super) fn window_serves(&self, end: usize, pair: usize, m: &Msg) -> bool {
        let Some(index) = m.grant else { return false };
        self.in_force(end, pair, index, m.posted)
            && self.ends[end].grants.get(index).is_some_and(|g| {
                let inside = m.at >= g.from && m.at + u64::from(m.len) <= g.from + g.len;
                inside && g.access.contains(m.needs())
            })
    }

    /// Makes a message out of a BIND. `None`: there is no window.
    pub(super) fn bind(&mut self, pair: usize, end: usize, a: &Args, m: &mut Msg) -> Option<()> {
        let queue = (pair, end, self.pairs[pair][end].generation);
        let odd = a.bad != mistake::NONE;
        // One that is not bound, if there is one.
        let own = &self.ends[end];
        let windows = (a.slot..a.slot + WINDOWS as u64)
            .filter_map(|slot| own.window_slots[slot as usize % WINDOWS]);
        let free = windows.clone().find(|w| {
            own.windows
                .get(*w)
                .is_some_and(|w| w.bound.is_none() && w.sure)
        });
        let window = if odd || a.a & 1 == 1 { None } else { free };
        let window = window.or_else(|| windows.clone().next())?;
        let w = *self.ends[end].windows.get(window)?;
        // A window that is bound is unbound first, unless the mistake is meant.
        if w.type2 && w.bound.is_some() && !odd {
            m.kind = kind::LOCAL_INV;
            return self.local_invalidate(pair, end, a, m);
        }
        // Who races for a window means to.
        let races = !w.sure || (w.pending > 0 && w.queue != queue);
        if (w.foreign || races) && !odd {
            return None;
        }
        let region = self.ends[end].slots[a.b as usize % SLOTS]?;
        let info = *self.ends[end].regions.get(region)?;
        let mut allowed = access(a.a);
        let changes = allowed.changes_memory();
        let may = info.access.contains(Access::MW_BIND)
            && (!changes || info.access.contains(Access::LOCAL_WRITE));
        let len = a.len.min(info.len);
        // So that atomics fit, whatever the addresses start from.
        let mut from = (a.at % (info.len - len + 1)) & !7;
        let mut wrong = w.foreign
            || (len > 0 && (!may || info.foreign || !info.live))
            || (w.type2 && (len == 0 || w.bound.is_some()))
            || (!w.type2 && allowed.contains(Access::ZERO_BASED));
        if wrong && !odd {
            return None;
        }
        self.queued(end, window, queue);
        let w = *self.ends[end].windows.get(window)?;
        let mut old = w.key;
        match a.bad {
            mistake::KEY => {
                old = (old & !0xff) | (old.wrapping_sub(1) & 0xff);
                wrong = true;
            }
            mistake::RANGE if len > 0 => {
                from = info.len - len / 2;
                wrong = true;
            }
            mistake::RIGHT => {
                allowed = allowed | Access::MW_BIND;
                wrong = true;
            }
            _ => {}
        }
        let new = (w.key & !0xff) | (w.key.wrapping_add(1) & 0xff);
        let right = w.sure && !wrong;
        // The operand is the grant, if any.
        let grant = (len > 0 && !wrong).then(|| {
            self.ends[end].grants.push(Grant {
                window,
                key: new,
                region,
                from,
                len,
                access: allowed,
                over: w.type2.then_some(pair),
                since: None,
                ending: false,
                gone: false,
            });
            self.ends[end].grants.len() - 1
        });
        if let Some(before) = w.bound
            && !wrong
            && let Some(g) = self.ends[end].grants.get_mut(before)
        {
            g.ending = true;
        }
        if !wrong && let Some(w) = self.ends[end].windows.get_mut(window) {
            (w.key, w.bound) = (new, grant);
        }
        m.bad = (wrong && w.sure).then_some(Status::MwBindErr);
        m.op = Some(SendOp::BindMw {
            window: RKey(old),
            rkey: RKey(new),
            region: RKey(info.rkey),
            va: info.va + from,
            len,
            access: allowed,
        });
        m.change = Some(Change {
            end,
            window,
            old,
            grant,
            new,
            certain: right,
        });
        Some(())
    }

    /// Makes a message out of a LOCAL INVALIDATE.
    pub(super) fn local_invalidate(
        &mut self,
        pair: usize,
        end: usize,
        a: &Args,
        m: &mut Msg,
    ) -> Option<()> {
        let grant = self.grant_of(end, a.slot, a.age)?;
        let queue = (pair, end, self.pairs[pair][end].generation);
        let g = *self.ends[end].grants.get(grant)?;
        let odd = a.bad != mistake::NONE;
        let (right, wrong) = self.invalidates(end, pair, grant, queue);
        if !odd && !right {
            return None;
        }
        self.queued(end, g.window, queue);
        m.op = Some(SendOp::LocalInvalidate(RKey(g.key)));
        m.bad = wrong.then_some(Status::LocQpOpErr);
        self.ends_grant(end, grant, wrong);
        m.change = Some(Change {
            end,
            window: g.window,
            old: g.key,
            grant: None,
            new: g.key,
            certain: right,
        });
        Some(())
    }

    /// Lets a SEND invalidate a key of the peer; a plain SEND where that would make no sense and is not meant.
    pub(super) fn invalidating(&mut self, pair: usize, end: usize, a: &Args, m: &mut Msg) {
        let target = 1 - end;
        let queue = (pair, end, self.pairs[pair][end].generation);
        let odd = a.bad == mistake::AS_IT_IS;
        let right = |grant: usize| {
            let (right, wrong) = self.invalidates(target, pair, grant, queue);
            (right && self.in_force(target, pair, grant, self.now), wrong)
        };
        let Some(grant) = self.choose(target, a, odd, |grant| right(grant).0) else {
            m.kind = kind::SEND;
            return;
        };
        let (serves, wrong) = right(grant);
        let Some(g) = self.ends[target].grants.get(grant).copied() else {
            return;
        };
        self.queued(target, g.window, queue);
        self.ends_grant(target, grant, wrong);
        m.op = Some(SendOp::SendInvalidate(RKey(g.key)));
        m.grant = Some(grant);
        m.change = Some(Change {
            end: target,
            window: g.window,
            old: g.key,
            grant: None,
            new: g.key,
            certain: serves,
        });
    }

    /// Whether invalidating a grant's key over the QP of `pair`, after all that stands in `queue`, works for sure, or fails for
    /// sure.
    fn invalidates(
        &self,
        end: usize,
        pair: usize,
        grant: usize,
        queue: (usize, usize, usize),
    ) -> (bool, bool) {
        let own = &self.ends[end];
        let Some((g, w)) = own
            .grants
            .get(grant)
            .and_then(|g| own.windows.get(g.window).map(|w| (g, w)))
        else {
            return (false, false);
        };
        let sure = w.sure && (w.pending == 0 || w.queue == queue);
        let right = sure && w.type2 && !g.gone && w.bound == Some(grant) && g.over == Some(pair);
        let other = w.bound != Some(grant) || g.over != Some(pair);
        (right, g.gone || !w.type2 || (sure && other))
    }

    /// The end of a grant was posted.
    fn ends_grant(&mut self, end: usize, grant: usize, wrong: bool) {
        if wrong {
            return;
        }
        let own = &mut self.ends[end];
        if let Some(g) = own.grants.get_mut(grant) {
            g.ending = true;
            if let Some(w) = own.windows.get_mut(g.window)
                && w.bound == Some(grant)
            {
                w.bound = None;
            }
        }
    }

    /// A message that changes a window was carried out.
    pub(super) fn window_changed(&mut self, change: &Change) {
        let now = self.now;
        let own = &mut self.ends[change.end];
        let grants = own.grants.iter_mut().enumerate();
        for (i, g) in grants.filter(|(_, g)| g.window == change.window) {
            if g.key == change.old && Some(i) != change.grant {
                g.gone = true;
            }
        }
        let sure = own.windows.get(change.window).is_some_and(|w| w.sure);
        if sure
            && let Some(g) = change.grant.and_then(|g| own.grants.get_mut(g))
            && !g.gone
        {
            g.since = Some(now);
        }
    }

    /// A message that would change a window has completed, or was not taken.
    pub(super) fn window_settled(&mut self, change: &Change, done: bool) {
        if done {
            self.window_changed(change);
        }
        if let Some(w) = self.ends[change.end].windows.get_mut(change.window) {
            w.pending = w.pending.saturating_sub(1);
            w.sure &= done;
        }
    }

    /// Whether a region may have a window bound to it, and whether it has one for sure.
    #[must_use]
    pub fn windows_on(&self, end: usize, region: usize) -> (bool, bool) {
        let mut on = self.ends[end].grants.iter().filter(|g| g.region == region);
        let may = on.clone().any(|g| !g.gone);
        (may, on.any(|g| !g.gone && !g.ending && g.since.is_some()))
    }

    /// Whether what a message does to a window can't fail, as far as is known now.
    pub(super) fn change_is_certain(&self, m: &Msg) -> bool {
        m.change.is_some_and(|c| {
            let window = self.ends[c.end].windows.get(c.window);
            c.certain && window.is_some_and(|w| w.sure)
        })
    }

    /// Whether a receive completion may say that this message has invalidated its key.
    pub(super) fn may_invalidate(&self, end: usize, m: &Msg) -> bool {
        let grant = m.grant.and_then(|g| self.ends[end].grants.get(g));
        m.kind != kind::SEND_INV || grant.is_some_and(|g| !g.gone)
    }
}
