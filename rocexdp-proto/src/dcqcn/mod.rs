//! DCQCN: the end-to-end congestion control of RoCEv2, as three parts that know nothing of one another.
//!
//! * CP, the congestion point: a switch that CE-marks packets when its egress queue grows. Not here; switches are models of
//!   the simulator.
//! * NP, the notification point ([`NotificationPoint`], `np.rs`): the receiver, which answers CE marks with CNPs, paced.
//! * RP, the reaction point ([`ReactionPoint`], `rp.rs`): the sender, which cuts its rate on CNPs and raises it without
//!   them. One per QP. The [`Pacer`] (`pacer.rs`) turns its rate into send times.
//!
//! Sources, by the names used in this module's comments:
//! * *paper*: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015;
//! * *ns-3*: the "Mellanox" model of the HPCC simulator (alibaba-edu/High-Precision-Congestion-Control, `rdma-hw.cc`), whose
//!   event logs the tests replay row by row;
//! * *NVIDIA*: the "DCQCN CC Parameters" page of the DOCA documentation (3.4) and the parameter names of the kernel's
//!   `drivers/infiniband/hw/mlx5/cong.c`.
//!
//! They disagree on when a cut happens, how alpha moves and when the target rate follows; [`RpParams`] has one switch per
//! difference, and [`Params::paper`], [`Params::ns3_mellanox`] and [`Params::connectx`] set them together:
//!
//! | | paper | ns-3 | ConnectX (default) |
//! |---|---|---|---|
//! | cut | on each CNP | on a grid of ticks | on a grid of ticks |
//! | alpha | raised on CNP, decays after silence | on a grid of ticks | on a grid of ticks |
//! | alpha is | real | real | 10-bit fixed point |
//! | target := rate at a cut | always | after a timer increase | after any increase |
//! | byte counter | 10 MB | none | 2.1 MB |
//! | stage counted | before the increase | after it | after it |
//! | hyper step | i x R_HAI | R_HAI | R_HAI |
//!
//! Loss is no congestion signal here: a gap never makes a CNP and never cuts a rate.
//!
//! Must not: read a clock, allocate after construction, or know of packets, maps or QPs. Depends on [`crate::time`] only.

mod alpha;
mod np;
mod pacer;
mod params;
mod rp;
mod table;
mod trace;

pub use np::NotificationPoint;
pub use pacer::Pacer;
pub use params::{
    AlphaForm, AlphaOn, CutOn, GapMarks, HyperStep, NpParams, Params, RpParams, StageCount,
    UnknownPreset,
};
pub use rp::{CeilingUnknown, ReactionPoint, RpCounters};
pub use table::{Param, ParamError};
pub use trace::{Event, EventKind, Trace};
