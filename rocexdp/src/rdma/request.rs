//! Work requests: each operation is a type, so that a request that its service or its memory does not allow does not compile.
//!
//! Must not: post anything.

use rocexdp_proto::{
    ids::WrId,
    mem::Segment,
    verbs::{SendOp, SendWr, SgList},
};

use super::{
    LocalAccess, PostFault, ReadWrite, RemoteRegion, RemoteSlice, RemoteWord, Slice, Word,
};

/// The bytes that a request sends: a slice, several behind one another, or a copy taken now ([`Source::inline`]).
#[derive(Clone, Debug)]
pub struct Source(SgList);

impl Source {
    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self(SgList::empty())
    }

    /// A copy of `bytes`, which may change at once: for what is short, at most 256 B, and need not be registered.
    #[must_use]
    pub fn inline(bytes: &[u8]) -> Self {
        Self(SgList::inline(bytes))
    }

    /// Slices, at most 16, one behind the other. Their regions may differ in what else is allowed with them.
    #[must_use]
    pub fn gather<A: LocalAccess>(slices: &[Slice<A>]) -> Self {
        Self(list(slices))
    }
}

impl<A: LocalAccess> From<Slice<A>> for Source {
    fn from(slice: Slice<A>) -> Self {
        Self(slice.segment().into())
    }
}

impl<A: LocalAccess> From<&Slice<A>> for Source {
    fn from(slice: &Slice<A>) -> Self {
        Self(slice.segment().into())
    }
}

/// Where a request's bytes come to: a slice of a region that may be written to, or several behind one another.
#[derive(Clone, Debug)]
pub struct Target(pub(super) SgList);

impl Target {
    /// No room: for messages without bytes, and for WRITEs with immediate, which bring theirs elsewhere.
    #[must_use]
    pub const fn empty() -> Self {
        Self(SgList::empty())
    }

    /// Slices, at most 16, one behind the other.
    #[must_use]
    pub fn scatter(slices: &[Slice<ReadWrite>]) -> Self {
        Self(list(slices))
    }
}

impl From<Slice<ReadWrite>> for Target {
    fn from(slice: Slice<ReadWrite>) -> Self {
        Self(slice.segment().into())
    }
}

impl From<&Slice<ReadWrite>> for Target {
    fn from(slice: &Slice<ReadWrite>) -> Self {
        Self(slice.segment().into())
    }
}

fn list<A: LocalAccess>(slices: &[Slice<A>]) -> SgList {
    let segments: Vec<Segment> = slices.iter().map(Slice::segment).collect();
    SgList::of(&segments)
}

/// A request for the send queue, of operation `O`: see its constructors.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct Wr<O> {
    pub(super) op: O,
    id: u64,
    signaled: bool,
    solicited: bool,
    fence: bool,
}

impl<O> Wr<O> {
    pub(super) fn of(op: O) -> Self {
        Self {
            op,
            id: 0,
            signaled: true,
            solicited: false,
            fence: false,
        }
    }

    /// Comes back in the completion; 0 unless set.
    pub fn id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// Success makes no completion; an error always does. The place in the queue is free again once a later request completes.
    pub fn unsignaled(mut self) -> Self {
        self.signaled = false;
        self
    }

    /// Waits until all READs and atomics posted before have completed.
    pub fn fenced(mut self) -> Self {
        self.fence = true;
        self
    }
}

impl<O: Operation> Wr<O> {
    pub(super) fn lower(self) -> Result<SendWr, PostFault> {
        let (op, local) = self.op.lower()?;
        Ok(SendWr {
            wr_id: WrId(self.id),
            op,
            local,
            signaled: self.signaled,
            solicited: self.solicited,
            fence: self.fence,
            to: None,
        })
    }
}

mod sealed {
    use super::{PostFault, SendOp, SgList};
    pub trait Operation {
        fn lower(self) -> Result<(SendOp, SgList), PostFault>;
    }
}
pub(super) use sealed::Operation;

fn fits(len: u64, room: u64) -> Result<(), PostFault> {
    if len <= room {
        Ok(())
    } else {
        Err(PostFault::NoRoom { len, room })
    }
}

/// SEND: into the peer's next receive request.
#[derive(Clone, Debug)]
pub struct Send {
    data: Source,
    op: SendOp,
}

impl Wr<Send> {
    /// Sends `data` into the peer's next receive request. Unless inline, the bytes must stay as they are until the request completes:
    /// they are read when packets leave, also again.
    pub fn send(data: impl Into<Source>) -> Self {
        Self::of(Send {
            data: data.into(),
            op: SendOp::Send,
        })
    }

    /// With 32 bits for the peer's completion.
    pub fn immediate(mut self, imm: u32) -> Self {
        self.op.op = SendOp::SendImm(imm);
        self
    }

    /// Then gives back a type 2 memory window of the peer, which it bound over this connection's queue pair; instead of an immediate. The
    /// peer's receive request completes with the key ([`Done::invalidated`](super::Done::invalidated)), and nothing reaches the window
    /// any more. Any other key is refused: the request fails with
    /// [`Status::RemAccessErr`](super::Status::RemAccessErr).
    pub fn invalidate(mut self, window: RemoteRegion) -> Self {
        self.op.op = SendOp::SendInvalidate(window.key());
        self
    }

    /// Marks the message for peers that wait for such only (solicited event).
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }
}

impl Operation for Send {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        Ok((self.op, self.data.0))
    }
}

/// WRITE: into the peer's memory. No request of the peer takes part, and it sees no completion.
#[derive(Clone, Debug)]
pub struct Write {
    data: Source,
    to: RemoteSlice,
}

impl Wr<Write> {
    /// Writes `data` to the beginning of `to`. Unless inline, the bytes must stay as they are until the request completes.
    pub fn write(data: impl Into<Source>, to: RemoteSlice) -> Self {
        Self::of(Write {
            data: data.into(),
            to,
        })
    }

    /// Then completes a receive request of the peer, with 32 bits.
    pub fn immediate(self, imm: u32) -> Wr<WriteImm> {
        Wr {
            op: WriteImm {
                write: self.op,
                imm,
            },
            id: self.id,
            signaled: self.signaled,
            solicited: self.solicited,
            fence: self.fence,
        }
    }
}

impl Operation for Write {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteSlice { rkey, va, len } = self.to;
        fits(self.data.0.len().into(), len)?;
        Ok((SendOp::Write { va, rkey }, self.data.0))
    }
}

/// WRITE that then completes a receive request of the peer.
#[derive(Clone, Debug)]
pub struct WriteImm {
    write: Write,
    imm: u32,
}

impl Wr<WriteImm> {
    /// Marks the message for peers that wait for such only (solicited event).
    pub fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }
}

impl Operation for WriteImm {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteSlice { rkey, va, .. } = self.write.to;
        let (_, list) = self.write.lower()?;
        let imm = self.imm;
        Ok((SendOp::WriteImm { va, rkey, imm }, list))
    }
}

/// READ: from the peer's memory into ours.
#[derive(Clone, Debug)]
pub struct Read {
    into: Target,
    from: RemoteSlice,
}

impl Wr<Read> {
    /// Reads all of `from` into `into`, which must be as long.
    pub fn read(into: impl Into<Target>, from: RemoteSlice) -> Self {
        Self::of(Read {
            into: into.into(),
            from,
        })
    }
}

impl Operation for Read {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteSlice { rkey, va, len } = self.from;
        let room = u64::from(self.into.0.len());
        // A READ asks for as many bytes as there is room for: the two lengths are one.
        if len != room {
            return Err(PostFault::ReadLength { len, room });
        }
        Ok((SendOp::Read { va, rkey }, self.into.0))
    }
}

/// COMPARE SWAP of 64 bits of the peer's.
#[derive(Clone, Debug)]
pub struct CompareSwap {
    answer: Word,
    at: RemoteWord,
    compare: u64,
    swap: u64,
}

impl Wr<CompareSwap> {
    /// Puts `swap` at the peer's word if `compare` stands there; what stood there comes into `answer`.
    pub fn compare_swap(answer: &Word, at: RemoteWord, compare: u64, swap: u64) -> Self {
        Self::of(CompareSwap {
            answer: answer.clone(),
            at,
            compare,
            swap,
        })
    }
}

impl Operation for CompareSwap {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteWord { rkey, va } = self.at;
        let (compare, swap) = (self.compare, self.swap);
        let op = SendOp::CompareSwap {
            va,
            rkey,
            compare,
            swap,
        };
        Ok((op, self.answer.segment().into()))
    }
}

/// FETCH ADD to 64 bits of the peer's.
#[derive(Clone, Debug)]
pub struct FetchAdd {
    answer: Word,
    at: RemoteWord,
    add: u64,
}

impl Wr<FetchAdd> {
    /// Adds to the peer's word, modulo 2^64; what stood there comes into `answer`.
    pub fn fetch_add(answer: &Word, at: RemoteWord, add: u64) -> Self {
        Self::of(FetchAdd {
            answer: answer.clone(),
            at,
            add,
        })
    }
}

impl Operation for FetchAdd {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteWord { rkey, va } = self.at;
        let add = self.add;
        Ok((
            SendOp::FetchAdd { va, rkey, add },
            self.answer.segment().into(),
        ))
    }
}

/// ATOMIC WRITE: 64 bits that nobody sees half written.
#[derive(Clone, Debug)]
pub struct AtomicWrite {
    value: u64,
    at: RemoteWord,
}

impl Wr<AtomicWrite> {
    /// Puts `value` at the peer's word, for a peer of the same byte order. Needs a peer that has the operation: rocexdp, Soft-RoCE since
    /// Linux 6.2, few NICs.
    pub fn atomic_write(value: u64, at: RemoteWord) -> Self {
        Self::of(AtomicWrite { value, at })
    }
}

impl Operation for AtomicWrite {
    fn lower(self) -> Result<(SendOp, SgList), PostFault> {
        let RemoteWord { rkey, va } = self.at;
        let value = SgList::inline(&self.value.to_ne_bytes());
        Ok((SendOp::AtomicWrite { va, rkey }, value))
    }
}

#[cfg(test)]
mod tests {
    use rocexdp_proto::mem::Access;

    use super::*;

    #[test]
    fn requests_that_do_not_fit_the_peers_slice_say_so() {
        let region = RemoteRegion::new(1, 0, 100, Access::REMOTE_READ | Access::REMOTE_WRITE);
        let ten = region.slice(0, 10).unwrap();
        let error = Wr::write(Source::inline(&[0; 11]), ten)
            .lower()
            .unwrap_err();
        assert_eq!(error, PostFault::NoRoom { len: 11, room: 10 });
        let error = Wr::read(Target::empty(), ten).lower().unwrap_err();
        assert_eq!(error, PostFault::ReadLength { len: 10, room: 0 });
        assert!(error.to_string().contains("10 B are asked for, into 0 B"));
    }
}
