//! Cuts the ordered bytes of a stream into frames.
//!
//! A frame that lies in one chunk is handed out where it lies. Only one that was cut by packets is put
//! together first, in a buffer that never holds more than such a frame and the chunk that ended it.

/// Kept allocated between frames, in bytes; what a larger frame took is given back.
const KEPT_BYTES: usize = 16 * 1024;

/// Puts the frames of one stream together.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// The front of a frame that is not whole.
    partial: Vec<u8>,
}

impl FrameReader {
    /// A reader at the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream and hands out each frame that they complete.
    ///
    /// `split` looks at the front of some bytes and gives the length of the frame there (not 0), or `None`
    /// until it is whole; it bounds the buffer by refusing a length over its limit as soon as it can be
    /// read.
    ///
    /// # Errors
    /// The first error of `split` or `on_frame`; the stream is then good for nothing more.
    ///
    /// # Panics
    /// If `split` gives a length that is 0 or over what it was shown.
    pub fn on_chunk<E>(
        &mut self,
        chunk: &[u8],
        split: impl Fn(&[u8]) -> Result<Option<usize>, E>,
        mut on_frame: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.partial.is_empty() {
            let used = cut(chunk, &split, &mut on_frame)?;
            self.partial.extend_from_slice(&chunk[used..]);
            return Ok(());
        }
        self.partial.extend_from_slice(chunk);
        let used = cut(&self.partial, &split, &mut on_frame)?;
        if used > 0 {
            self.partial.drain(..used);
            self.partial.shrink_to(KEPT_BYTES);
        }
        Ok(())
    }

    /// Bytes of a frame that has begun. Not 0 at the end of a stream means that the peer broke off.
    pub fn partial_bytes(&self) -> usize {
        self.partial.len()
    }
}

/// Hands out the whole frames at the front; the bytes they had.
fn cut<E>(
    bytes: &[u8],
    split: &impl Fn(&[u8]) -> Result<Option<usize>, E>,
    on_frame: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let mut used = 0;
    while used < bytes.len()
        && let Some(length) = split(&bytes[used..])?
    {
        assert!(length > 0, "a frame has bytes");
        on_frame(&bytes[used..][..length])?;
        used += length;
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH_MAX: usize = 4_096;

    fn split(bytes: &[u8]) -> Result<Option<usize>, usize> {
        let Some(prefix) = bytes.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix) as usize;
        if !(4..=LENGTH_MAX).contains(&length) {
            return Err(length);
        }
        Ok((bytes.len() >= length).then_some(length))
    }

    fn frame(length: usize, fill: u8) -> Vec<u8> {
        let mut frame = vec![fill; length];
        frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
        frame
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_and_in_order_however_the_stream_is_cut(
            lengths in proptest::collection::vec(4..LENGTH_MAX, 0..30),
            cuts in proptest::collection::vec(1..3_000usize, 1..20),
        ) {
            let sent: Vec<Vec<u8>> =
                lengths.iter().enumerate().map(|(at, length)| frame(*length, at as u8)).collect();
            let stream = sent.concat();
            let (mut reader, mut received, mut rest) = (FrameReader::new(), Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
                rest = tail;
                reader.on_chunk(chunk, split, |frame| { received.push(frame.to_vec()); Ok(()) }).unwrap();
                prop_assert!(reader.partial_bytes() < LENGTH_MAX);
                prop_assert!(reader.partial.capacity() <= KEPT_BYTES);
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(reader.partial_bytes(), 0);
            prop_assert_eq!(received, sent);
        }
    }

    #[test]
    fn a_frame_in_one_chunk_is_handed_out_where_it_lies() {
        let stream = [frame(8, 1), frame(9, 2), frame(4, 3)[..2].to_vec()].concat();
        let (mut reader, mut addresses) = (FrameReader::new(), Vec::new());
        reader
            .on_chunk(&stream, split, |frame| {
                addresses.push(frame.as_ptr());
                Ok(())
            })
            .unwrap();
        assert_eq!(addresses, [stream.as_ptr(), stream[8..].as_ptr()]);
        assert_eq!(reader.partial_bytes(), 2);
    }

    #[test]
    fn errors_of_both_sides_come_out() {
        let mut reader = FrameReader::new();
        assert_eq!(reader.on_chunk(&[0xff; 4], split, |_| Ok(())), Err(u32::MAX as usize));
        let mut reader = FrameReader::new();
        assert_eq!(reader.on_chunk(&frame(5, 0), split, |_| Err(77)), Err(77));
    }
}
