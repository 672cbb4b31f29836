//! Capture files: pcap and pcapng, read as a stream and written.
