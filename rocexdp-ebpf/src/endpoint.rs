//! What both of the endpoint's programs do with a frame: the verdict over the maps, and its outcome as an XDP action.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    programs::XdpContext,
};
use aya_log_ebpf::info;
use rocexdp_common::verdict::{self, Action};

use crate::{
    frame::Frame,
    maps::{self, Maps},
};

/// The program.
#[inline(always)]
pub fn program(ctx: &XdpContext) -> u32 {
    let md: *mut xdp_md = ctx.ctx;
    let Some(mut maps) = Maps::of(md) else {
        return xdp_action::XDP_PASS;
    };
    let outcome = verdict::run(&Frame::new(md), &mut maps);
    maps.book(outcome);
    if maps::log_refusals()
        && let Some(reason) = outcome.reason()
    {
        // The reason's number: names would need a string for each here. Userspace has them.
        info!(
            ctx,
            "refused: reason {}, queue {}",
            reason as u8,
            maps.queue_index()
        );
    }
    match outcome.action() {
        Action::Pass => xdp_action::XDP_PASS,
        Action::Drop => xdp_action::XDP_DROP,
        Action::Redirect => xdp_action::XDP_REDIRECT,
    }
}
