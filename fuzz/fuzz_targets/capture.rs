//! Any bytes as a capture file: the reader ends, tells what is wrong instead of panicking, and lends packets that are what
//! it says of them.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use rocexdp_observe::capture::{MAX_CAPTURED, Reader};

fuzz_target!(|data: &[u8]| {
    let len = data.len() as u64;
    let Ok(mut reader) = Reader::from_reader(Cursor::new(data.to_vec())) else {
        return;
    };
    let mut expected = 1;
    // A compressed file may hold more packets than there is time for.
    for _ in 0..20_000 {
        match reader.next() {
            Ok(Some(packet)) => {
                // Wireshark numbers records that are no packets too.
                assert!(packet.number >= expected);
                assert!(packet.data.len() <= MAX_CAPTURED as usize);
                assert!(packet.data.len() as u64 <= u64::from(packet.wire_len));
                packet.dissect();
                expected = packet.number + 1;
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    reader.warnings();
    assert!(reader.bytes_read() <= len);
});
