//! What the fuzz targets share: what a fuzzer's bytes mean. It must not check anything: that is the targets' role.

/// How a frame is looked at, and the frame: the form of the input of target `parser`.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// 0: from the Ethernet header on; 1: from the IP header on; 2: from `at` on, as `ether_type` says.
    pub from: u8,
    /// Offset, small.
    pub at: u8,
    /// EtherType.
    pub ether_type: u16,
    /// Bytes of the frame that were not captured.
    pub missing: u16,
    /// What was captured.
    pub frame: &'a [u8],
}

impl<'a> Look<'a> {
    /// Reads the input; `None`: too short.
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let (head, frame) = data.split_first_chunk::<6>()?;
        Some(Self {
            from: head[0] % 3,
            at: head[1],
            ether_type: u16::from_be_bytes([head[2], head[3]]),
            missing: u16::from_be_bytes([head[4], head[5]]),
            frame,
        })
    }

    /// Writes it.
    pub fn write(&self) -> Vec<u8> {
        let mut data = vec![self.from, self.at];
        data.extend(self.ether_type.to_be_bytes());
        data.extend(self.missing.to_be_bytes());
        data.extend(self.frame);
        data
    }
}

/// Frames that arrive one after another, each with its queue: the form of the input of target `verdict`.
pub fn arrivals(mut data: &[u8]) -> Vec<(u32, &[u8])> {
    let mut all = Vec::new();
    while let Some((&[queue, a, b], rest)) = data.split_first_chunk() {
        let len = usize::from(u16::from_be_bytes([a, b])).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        all.push((u32::from(queue % 3), frame));
        data = rest;
    }
    all
}

/// Writes frames in that form.
pub fn write_arrivals<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut data = Vec::new();
    for frame in frames {
        data.push(0);
        data.extend((frame.len() as u16).to_be_bytes());
        data.extend(frame);
    }
    data
}
