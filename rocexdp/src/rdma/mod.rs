//! RDMA for applications: devices, protection domains, regions, queue pairs, completions, connections.
//!
//! The names and meanings are those of verbs (rdma-core), with Rust's types in front: what the types can refuse does not compile. The
//! objects, from the first to the last:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use rocexdp::{mem::Buffer, rdma::{Access, CompletionQueue, Connect, Device, Wr}};
//!
//! let device = Device::open("eth0")?;                       // loads the XDP program, starts an engine
//! let pd = device.protection_domain()?;
//! let cq = CompletionQueue::new(256);
//! let memory = pd.register(Buffer::map(1 << 20)?, Access::NONE)?;
//!
//! let qp = pd.queue_pair(&cq).depths(128, 128).build()?;
//! qp.post_recv(1, memory.slice(0..4096)?)?;                 // before the peer can send
//! let qp = qp.connect("192.0.2.2:7000".parse()?, &Connect::new()).await?;
//!
//! memory.write(4096, b"hello")?;
//! qp.post(Wr::send(memory.slice(4096..4101)?).id(2))?;
//! loop {
//!     let done = cq.next().await?.result()?;                // a failed request is an error
//!     println!("request {}: {:?}, {} B", done.id, done.opcode, done.byte_len);
//!     # break;
//! }
//! # Ok(()) }
//! ```
//!
//! # What does not compile
//!
//! Each behind what does, so that it is refused for the reason that is given.
//!
//! Sending over a queue pair that has no peer yet; it takes receives only:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{Init, QueuePair, Rc, Slice, ReadWrite, Wr};
//! fn too_early(qp: &QueuePair<Rc, Init>, slice: Slice<ReadWrite>) {
//!     qp.post(Wr::send(slice)).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, Rc, Ready, Slice, ReadWrite, Wr};
//! fn in_time(qp: &QueuePair<Rc, Ready>, slice: Slice<ReadWrite>) {
//!     qp.post(Wr::send(slice)).unwrap();
//! }
//! ```
//! Connecting twice:
//! ```compile_fail,E0382
//! # use rocexdp::rdma::{Connect, Init, QueuePair, Rc};
//! async fn twice(qp: QueuePair<Rc, Init>, peer: std::net::SocketAddr) {
//!     qp.connect(peer, &Connect::new()).await.unwrap();
//!     qp.connect(peer, &Connect::new()).await.unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{Connect, Init, QueuePair, Rc};
//! async fn once(qp: QueuePair<Rc, Init>, peer: std::net::SocketAddr) {
//!     qp.connect(peer, &Connect::new()).await.unwrap();
//! }
//! ```
//! Receiving into memory that is for reading only:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, ReadOnly, Slice};
//! fn receive(qp: &QueuePair, slice: Slice<ReadOnly>) {
//!     qp.post_recv(1, slice).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, ReadWrite, Slice};
//! fn receive(qp: &QueuePair, slice: Slice<ReadWrite>) {
//!     qp.post_recv(1, slice).unwrap();
//! }
//! ```
//! READ into such memory:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, ReadOnly, RemoteSlice, Slice, Wr};
//! fn read(qp: &QueuePair, slice: Slice<ReadOnly>, from: RemoteSlice) {
//!     qp.post(Wr::read(slice, from)).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Wr};
//! fn read(qp: &QueuePair, slice: Slice<ReadWrite>, from: RemoteSlice) {
//!     qp.post(Wr::read(slice, from)).unwrap();
//! }
//! ```
//! Receiving into inline data, which is the request's own:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, Source};
//! fn receive(qp: &QueuePair) {
//!     qp.post_recv(1, Source::inline(b"no room")).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, Source, Wr};
//! fn send(qp: &QueuePair) {
//!     qp.post(Wr::send(Source::inline(b"some bytes"))).unwrap();
//! }
//! ```
//! An atomic on what need not be 8 bytes on an 8-byte boundary, at the peer:
//! ```compile_fail,E0308
//! # use rocexdp::rdma::{QueuePair, RemoteSlice, Word, Wr};
//! fn add(qp: &QueuePair, answer: &Word, at: RemoteSlice) {
//!     qp.post(Wr::fetch_add(answer, at, 1)).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, RemoteWord, Word, Wr};
//! fn add(qp: &QueuePair, answer: &Word, at: RemoteWord) {
//!     qp.post(Wr::fetch_add(answer, at, 1)).unwrap();
//! }
//! ```
//! or here, where the answer goes:
//! ```compile_fail,E0308
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteWord, Slice, Wr};
//! fn add(qp: &QueuePair, answer: &Slice<ReadWrite>, at: RemoteWord) {
//!     qp.post(Wr::fetch_add(answer, at, 1)).unwrap();
//! }
//! ```
//! A word of a region that is for reading only, which an atomic would change:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{ReadOnly, Region};
//! fn word(region: &Region<ReadOnly>) {
//!     region.word(0).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{ReadWrite, Region};
//! fn word(region: &Region<ReadWrite>) {
//!     region.word(0).unwrap();
//! }
//! ```
//! Registering a file that is mapped for reading only as memory to be written to:
//! ```compile_fail,E0277
//! # use rocexdp::{mem::ReadOnlyFile, rdma::{Access, ProtectionDomain}};
//! fn register(pd: &ProtectionDomain, file: ReadOnlyFile) {
//!     pd.register(file, Access::REMOTE_READ).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::{mem::ReadOnlyFile, rdma::{Access, ProtectionDomain}};
//! fn register(pd: &ProtectionDomain, file: ReadOnlyFile) {
//!     pd.register_read_only(file, Access::REMOTE_READ).unwrap();
//! }
//! ```
//! An operation that the service does not have:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Uc, Wr};
//! fn read(qp: &QueuePair<Uc>, into: Slice<ReadWrite>, from: RemoteSlice) {
//!     qp.post(Wr::read(into, from)).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Uc, Wr};
//! fn write(qp: &QueuePair<Uc>, from: Slice<ReadWrite>, to: RemoteSlice) {
//!     qp.post(Wr::write(from, to)).unwrap();
//! }
//! ```
//! A solicited event for a WRITE, which no receive request of the peer completes:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Wr};
//! fn write(qp: &QueuePair, data: Slice<ReadWrite>, to: RemoteSlice) {
//!     qp.post(Wr::write(data, to).solicited()).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Wr};
//! fn write(qp: &QueuePair, data: Slice<ReadWrite>, to: RemoteSlice) {
//!     qp.post(Wr::write(data, to).immediate(1).solicited()).unwrap();
//! }
//! ```
//! Unbinding a type 2 window, which is invalidated instead:
//! ```compile_fail,E0308
//! # use rocexdp::rdma::{MemoryWindow, QueuePair, Type2, Wr};
//! fn unbind(qp: &QueuePair, window: &MemoryWindow<Type2>) {
//!     qp.post(Wr::unbind(window)).unwrap();
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{MemoryWindow, QueuePair, Type1, Type2, Wr};
//! fn unbind(qp: &QueuePair, one: &MemoryWindow<Type1>, two: &MemoryWindow<Type2>) {
//!     qp.post(Wr::unbind(one)).unwrap();
//!     qp.post(Wr::local_invalidate(two.key())).unwrap();
//! }
//! ```
//! Taking what a completion brought without asking whether the request succeeded:
//! ```compile_fail,E0609
//! # use rocexdp::rdma::CompletionQueue;
//! fn bytes(cq: &CompletionQueue) -> Option<u32> {
//!     Some(cq.poll()?.byte_len)
//! }
//! ```
//! ```
//! # use rocexdp::rdma::CompletionQueue;
//! fn bytes(cq: &CompletionQueue) -> Option<u32> {
//!     Some(cq.poll()?.result().ok()?.byte_len)
//! }
//! ```
//! Using a region while its bytes are borrowed, or its bytes while a peer may change them (there, [`Region::as_mut_slice`] is an error):
//! ```compile_fail,E0502
//! # use rocexdp::rdma::{QueuePair, ReadWrite, Region, Wr};
//! fn send(qp: &QueuePair, mut region: Region<ReadWrite>) {
//!     let bytes = region.as_mut_slice().unwrap();
//!     qp.post(Wr::send(region.slice(..).unwrap())).unwrap();
//!     bytes[0] = 1;
//! }
//! ```
//! ```
//! # use rocexdp::rdma::{QueuePair, ReadWrite, Region, Wr};
//! fn send(qp: &QueuePair, mut region: Region<ReadWrite>) {
//!     let bytes = region.as_mut_slice().unwrap();
//!     bytes[0] = 1;
//!     qp.post(Wr::send(region.slice(..).unwrap())).unwrap();
//! }
//! ```
//!
//! What stays for run time: whether a region and a queue pair are of one protection domain, whether ranges lie in their regions, and
//! what the peer allows.
//!
//! # Memory: what an application may rely on
//!
//! A request holds its memory until it completes, whatever the application drops meanwhile. Peers and the engine change a region's bytes
//! at any time, so they are copied, never borrowed; see [`Region`]. Of one reliable queue pair:
//!
//! - **A completion of a receive request, or of a READ or atomic of ours,** is seen after all its bytes: whoever polls it finds them there;
//!   and, of a receive request, all that the peer's requests before it wrote.
//! - **A completion of a WRITE of ours** says that the bytes are in the peer's memory, visible to its threads. That they survive a loss of
//!   power is asked by [`Wr::flush`]. A completion of a SEND says that the peer's receive request has the message.
//! - **Polling memory.** A WRITE's bytes become visible in the order of their addresses, the last aligned word (8, 4, 2 or 1 bytes) last and
//!   at once: who polls that word by [`Region::load`] or a [`Word`] and sees it changed finds all before it. Across WRITEs the order is that
//!   of posting. With UC too, as far as messages arrive.
//! - **Sent again.** What is sent is read when packets leave, also again: change it only after the completion.
//! - **A READ meets what there is.** Its packets are filled at different times, and a packet that was lost is filled anew: one READ may
//!   bring older bytes beside newer ones, in any order. A checksum or version tells (as in the
//!   example `kv`). What was written, and completed, before the READ was posted, it sees.
//! - **Order of our requests.** They begin in the order in which they were posted. A WRITE or SEND behind a READ or atomic may reach the
//!   peer's memory before the READ's last bytes are taken: [`Wr::fenced`] waits. WRITEs behind WRITEs need nothing.
//! - **Atomics** of all queue pairs of this host, and a [`Word`]'s, are one with another; [`Wr::atomic_write`] is never seen half done. Not
//!   with a WRITE, nor with other processes' plain stores.
//!
//! # Threads and runtimes
//!
//! Posting and polling take no lock of the engine and never wait. Making and dropping objects (domains, regions, windows, queue pairs)
//! waits for the engine's workers: microseconds, but as long as a disk takes where a peer's FLUSH to persistence of a mapped file is being
//! carried out. On a runtime that must not stall, make and drop them by `spawn_blocking`, or serve such files from a device of their own.
//!
//! When a worker dies of a fault of this crate, waiting and posting end with an error: see [`CompletionQueue::failure`].

mod behaviour;
mod change;
pub mod cm;
mod completion;
mod connect;
mod device;
mod error;
mod flush;
pub mod handshake;
mod link;
mod places;
mod qp;
mod region;
mod remote;
mod request;
mod service;
mod srq;
pub mod ud;
mod window;

pub use behaviour::{Behaviour, FlowLabel};
pub use change::Drained;
pub use completion::{Completion, CompletionChannel, CompletionQueue, Done, WorkError};
pub use connect::{Connect, Incoming, Listener};
pub use device::{Device, ProtectionDomain};
pub use error::{Error, OutOfRange, PostError, PostFault, QueueName, Refusal, ViewError};
pub use flush::{Flush, Placement};
pub use link::Closed;
pub use qp::{Agreed, End, Init, QueuePair, QueuePairBuilder, Ready};
pub use region::{LocalAccess, ReadOnly, ReadWrite, Region, Slice, Word};
pub use remote::{RemoteRegion, RemoteSlice, RemoteWord};
pub use request::{
    AtomicWrite, CompareSwap, FetchAdd, Read, Send, Source, Target, Wr, Write, WriteImm,
};
pub use service::{Carries, Connected, Rc, Service, Uc, Ud};
pub use srq::SharedReceiveQueue;
pub use ud::{AddressHandle, HandleAttr, Open, Origin, Recipient};
pub use window::{Bind, LocalInvalidate, MemoryWindow, Type1, Type2, WindowKey, WindowType};

pub use crate::{
    control::{exchange::RefuseCode, token::Token},
    node::{NodeConfig, NodeEvent},
};
pub use rocexdp_proto::{
    DeviceAttr, QpAttr, QpInitAttr, QpState, SelectiveRepeat,
    ids::{PathMtu, Psn, Qpn},
    mem::Access,
    verbs::{CqeOpcode, PostError as QueueError, Status},
};
