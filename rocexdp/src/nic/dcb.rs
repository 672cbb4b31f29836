//! PFC by DCB netlink: which priorities have it, and how many frames were sent and received.
//!
//! Follows the kernel's include/uapi/linux/dcbnl.h (`struct ieee_pfc`) and net/dcb/dcbnl.c (`dcb_doit`, `dcbnl_ieee_get`).

use std::io;

use super::raw::{Raw, attribute, u64_of, unexpected};
use crate::net::netlink::Socket;

const RTM_GETDCB: u16 = 78;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_PFC: u16 = 2;
/// sizeof(struct dcbmsg).
const DCBMSG: usize = 4;
/// `requests` in `struct ieee_pfc`: three bytes, a pad, a 16-bit delay, and the alignment of 64-bit numbers.
const REQUESTS: usize = 8;
/// `indications`, behind eight requests.
const INDICATIONS: usize = 72;

/// `struct ieee_pfc`, as far as it is of use here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IeeePfc {
    /// Priorities with PFC on, bit i = priority i.
    pub enabled: u8,
    /// PFC frames sent, by priority.
    pub requests: [u64; 8],
    /// PFC frames received, by priority.
    pub indications: [u64; 8],
}

/// Asks the driver of `iface`.
///
/// # Errors
/// `EOPNOTSUPP` where the driver, or the kernel, has no DCB, or the driver tells nothing of PFC; `ENODEV` for no such interface.
pub fn ieee_pfc(iface: &str) -> io::Result<IeeePfc> {
    let mut name = iface.as_bytes().to_vec();
    name.push(0);
    let request = Raw::new(RTM_GETDCB, &[0, DCB_CMD_IEEE_GET, 0, 0]).with(DCB_ATTR_IFNAME, &name);
    let answers = Socket::route(0)?.request(request, 0)?;
    answers
        .iter()
        .find_map(|answer| parse(&answer.body))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?
}

/// `None`: the answer has no PFC attribute.
fn parse(body: &[u8]) -> Option<io::Result<IeeePfc>> {
    let ieee = attribute(body.get(DCBMSG..)?, DCB_ATTR_IEEE)?;
    let pfc = attribute(ieee, DCB_ATTR_IEEE_PFC)?;
    Some(parse_pfc(pfc).ok_or_else(|| unexpected("DCB netlink: struct ieee_pfc is cut short")))
}

fn parse_pfc(pfc: &[u8]) -> Option<IeeePfc> {
    let array = |at: usize| -> Option<[u64; 8]> {
        let mut all = [0; 8];
        for (i, value) in all.iter_mut().enumerate() {
            *value = u64_of(pfc.get(at + 8 * i..)?)?;
        }
        Some(all)
    };
    Some(IeeePfc {
        enabled: *pfc.get(1)?,
        requests: array(REQUESTS)?,
        indications: array(INDICATIONS)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer as `dcbnl_ieee_fill` builds it: ETS (attribute 1) first, then PFC.
    fn answer(pfc: &[u8]) -> Vec<u8> {
        let inner = Raw::new(0, &[])
            .with(1, &[0xa5; 59])
            .with(DCB_ATTR_IEEE_PFC, pfc);
        Raw::new(RTM_GETDCB, &[0, DCB_CMD_IEEE_GET, 0, 0])
            .with(DCB_ATTR_IFNAME, b"eth0\0")
            .with(DCB_ATTR_IEEE | 0x8000, &inner.body)
            .body
    }

    #[test]
    fn requests_are_sent_and_indications_received_frames() {
        let mut pfc = vec![8, 0b0000_1001, 0, 0xa5, 0x34, 0x12, 0xa5, 0xa5];
        for n in 0..16_u64 {
            pfc.extend((n * 1000 + 1).to_ne_bytes());
        }
        assert_eq!(pfc.len(), 136, "sizeof(struct ieee_pfc)");
        let found = parse(&answer(&pfc)).unwrap().unwrap();
        assert_eq!(found.enabled, 0b1001);
        assert_eq!((found.requests[0], found.requests[7]), (1, 7001));
        assert_eq!((found.indications[0], found.indications[7]), (8001, 15_001));
        assert!(parse(&answer(&pfc[..135])).unwrap().is_err());
        assert!(parse(&Raw::new(RTM_GETDCB, &[0, 21, 0, 0]).body).is_none());
    }
}
