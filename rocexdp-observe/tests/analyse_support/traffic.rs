//! Packets made as a ConnectX makes them (MigReq, credits, few AckReqs), with right ICRCs.

use rocexdp_observe::report::Report;

use super::{Frame, analyse, seal};

pub const SEND_ONLY: u8 = 0x04;
pub const READ_REQUEST: u8 = 0x0c;
pub const READ_FIRST: u8 = 0x0d;
pub const READ_MIDDLE: u8 = 0x0e;
pub const READ_LAST: u8 = 0x0f;
pub const ACK: u8 = 0x11;
pub const CREDITS: u8 = 0x05;
pub const NAK_SEQUENCE: u8 = 0x60;
/// RNR NAK, timer 14: 1.28 ms.
pub const RNR: u8 = 0x2e;
pub const US: i64 = 1000;
pub const MS: i64 = 1_000_000;

/// A capture in the making; hosts are 10.1.0.1 (the requester) and 10.1.0.2.
#[derive(Default)]
pub struct Capture {
    pub frames: Vec<Frame>,
    ids: [u16; 2],
}

impl Capture {
    pub fn packet(&mut self, time: i64, host: u8, opcode: u8, qpn: u32, psn: u32, body: &[u8]) {
        let id = &mut self.ids[usize::from(host - 1)];
        *id = id.wrapping_add(1).max(1);
        let len = 14 + 20 + 8 + 12 + body.len() + 4;
        let mut data = vec![0; len];
        data[12] = 8;
        data[14] = 0x45;
        data[15] = 0x6a;
        data[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
        data[18..20].copy_from_slice(&id.to_be_bytes());
        (data[20], data[22], data[23]) = (0x40, 64, 17);
        data[26..30].copy_from_slice(&[10, 1, 0, host]);
        data[30..34].copy_from_slice(&[10, 1, 0, 3 - host]);
        data[34..36].copy_from_slice(&0x2345u16.to_be_bytes());
        data[36..38].copy_from_slice(&4791u16.to_be_bytes());
        data[38..40].copy_from_slice(&(len as u16 - 34).to_be_bytes());
        (data[42], data[43]) = (opcode, 0x40);
        data[44..46].copy_from_slice(&[0xff, 0xff]);
        data[47..50].copy_from_slice(&qpn.to_be_bytes()[1..]);
        data[51..54].copy_from_slice(&(psn & 0xff_ffff).to_be_bytes()[1..]);
        if matches!(opcode, SEND_ONLY) {
            data[50] = 0x80;
        }
        data[54..54 + body.len()].copy_from_slice(body);
        seal(&mut data);
        self.frames.push(Frame {
            time_ns: time,
            wire_len: len as u32,
            data,
            interface: 0,
        });
    }

    /// A SEND of 8 bytes from the requester to QP `qpn`.
    pub fn send(&mut self, time: i64, qpn: u32, psn: u32) {
        self.packet(time, 1, SEND_ONLY, qpn, psn, &[0; 8]);
    }

    pub fn answer(&mut self, time: i64, qpn: u32, psn: u32, syndrome: u8) {
        self.packet(time, 2, ACK, qpn, psn, &[syndrome, 0, 0, 1]);
    }

    pub fn ack(&mut self, time: i64, qpn: u32, psn: u32) {
        self.answer(time, qpn, psn, CREDITS);
    }

    /// A READ of four packets of 1024 bytes, without the responses in `missing`.
    pub fn read(&mut self, time: i64, psn: u32, missing: &[u32]) {
        let mut reth = [0; 16];
        reth[12..].copy_from_slice(&4096u32.to_be_bytes());
        self.packet(time, 1, READ_REQUEST, 0x202, psn, &reth);
        for (n, opcode) in [READ_FIRST, READ_MIDDLE, READ_MIDDLE, READ_LAST]
            .into_iter()
            .enumerate()
        {
            let n = n as u32;
            let mut body = vec![0; 1024];
            if opcode != READ_MIDDLE {
                body.extend_from_slice(&[0; 4]);
            }
            if !missing.contains(&n) {
                let time = time + (5 + i64::from(n)) * US;
                self.packet(time, 2, opcode, 0x101, psn + n, &body);
            }
        }
    }

    pub fn report(mut self) -> Report {
        self.frames.sort_by_key(|frame| frame.time_ns);
        analyse(&self.frames)
    }
}
