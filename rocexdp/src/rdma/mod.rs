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
//! Sending over a queue pair that has no peer yet; it takes receives only:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{Init, QueuePair, Rc, Slice, ReadWrite, Wr};
//! fn too_early(qp: &QueuePair<Rc, Init>, slice: Slice<ReadWrite>) {
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
//! Receiving into memory that is for reading only:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, ReadOnly, Slice};
//! fn receive(qp: &QueuePair, slice: Slice<ReadOnly>) {
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
//! Receiving into inline data, which is the request's own:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, Source};
//! fn receive(qp: &QueuePair) {
//!     qp.post_recv(1, Source::inline(b"no room")).unwrap();
//! }
//! ```
//! An atomic on what need not be 8 bytes on an 8-byte boundary, at either end:
//! ```compile_fail,E0308
//! # use rocexdp::rdma::{QueuePair, RemoteSlice, Word, Wr};
//! fn add(qp: &QueuePair, answer: &Word, at: RemoteSlice) {
//!     qp.post(Wr::fetch_add(answer, at, 1)).unwrap();
//! }
//! ```
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
//! Registering a file that is mapped for reading only as memory to be written to:
//! ```compile_fail,E0277
//! # use rocexdp::{mem::ReadOnlyFile, rdma::{Access, ProtectionDomain}};
//! fn register(pd: &ProtectionDomain, file: ReadOnlyFile) {
//!     pd.register(file, Access::REMOTE_READ).unwrap();
//! }
//! ```
//! An operation that the service does not have:
//! ```compile_fail,E0277
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Uc, Wr};
//! fn read(qp: &QueuePair<Uc>, into: Slice<ReadWrite>, from: RemoteSlice) {
//!     qp.post(Wr::read(into, from)).unwrap();
//! }
//! ```
//! A solicited event for a WRITE, which no receive request of the peer completes:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::{QueuePair, ReadWrite, RemoteSlice, Slice, Wr};
//! fn write(qp: &QueuePair, data: Slice<ReadWrite>, to: RemoteSlice) {
//!     qp.post(Wr::write(data, to).solicited()).unwrap();
//! }
//! ```
//! Taking what a completion brought without asking whether the request succeeded:
//! ```compile_fail,E0599
//! # use rocexdp::rdma::CompletionQueue;
//! fn bytes(cq: &CompletionQueue) -> Option<u32> {
//!     Some(cq.poll()?.byte_len)
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
//!
//! What stays for run time: whether a region and a queue pair are of one protection domain, whether ranges lie in their regions, and
//! what the peer allows.
//!
//! # Memory
//!
//! A request holds its memory until it completes, whatever the application drops meanwhile. Peers and the engine change a region's bytes
//! at any time, so they are copied, never borrowed; see [`Region`]. A message's bytes become visible in the order of their addresses,
//! the last aligned word last: who polls the end of what a peer WRITEs by [`Region::load`] or a [`Word`] finds all before it (see
//! [`crate::mem`]).

mod behaviour;
mod change;
mod completion;
mod connect;
mod device;
mod error;
mod flush;
pub mod handshake;
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
