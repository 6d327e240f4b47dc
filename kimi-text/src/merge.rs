//! Byte-pair encoding of one piece of text by rank.
//!
//! The definition: begin with single bytes; while two neighbours together are a token, join the pair whose token
//! has the lowest rank, the leftmost one where that token comes several times. Two methods compute it: scanning
//! all pairs again after each merge, which is quadratic and fastest on the short pieces that text is made of, and
//! a heap of pairs, which is `n log n`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::vocabulary::{TokenId, Vocabulary};

/// Pieces of more bytes than this go through the heap. Measured with the released vocabulary, the two methods are
/// equally fast at 70 bytes of one letter and at 95 bytes of English letters.
const SCAN_LIMIT: usize = 80;

/// Stands for "these neighbours are no token"; ranks are lower.
const NONE: u32 = u32::MAX;

/// Encodes pieces; the memory is kept from one piece to the next.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    parts: Vec<Part>,
    nodes: Vec<Node>,
    /// Pairs by rank, then place: the rank in the upper half, the index of the node in the lower.
    heap: BinaryHeap<Reverse<u64>>,
}

/// A token of the piece, for the scan.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: u32,
    id: u32,
    /// The token that this part and the next one make.
    pair: u32,
}

/// A token of the piece, for the heap; it lies at the index of its first byte.
#[derive(Debug, Clone, Copy)]
struct Node {
    previous: u32,
    next: u32,
    id: u32,
    /// The token that this node and the next one make.
    pair: u32,
}

impl Merger {
    /// Appends the tokens of `piece`. The piece has fewer than `u32::MAX` bytes.
    pub(crate) fn encode(&mut self, vocabulary: &Vocabulary, piece: &[u8], ids: &mut Vec<TokenId>) {
        if let Some(id) = vocabulary.id(piece) {
            ids.push(id);
        } else if piece.len() <= SCAN_LIMIT {
            self.by_scan(vocabulary, piece, ids);
        } else {
            self.by_heap(vocabulary, piece, ids);
        }
    }

    fn by_scan(&mut self, vocabulary: &Vocabulary, piece: &[u8], ids: &mut Vec<TokenId>) {
        let parts = &mut self.parts;
        parts.clear();
        parts.extend((0..).zip(piece).map(|(start, &byte)| Part {
            start,
            id: vocabulary.single_byte(byte).0,
            pair: piece.get(start as usize..start as usize + 2).map_or(NONE, |pair| rank(vocabulary, pair)),
        }));
        // The end of the piece, so that the end of every token is the start of the next part.
        parts.push(Part { start: piece.len() as u32, id: NONE, pair: NONE });
        let pair = |parts: &[Part], at: usize| match parts.get(at + 2) {
            Some(end) => rank(vocabulary, &piece[parts[at].start as usize..end.start as usize]),
            None => NONE,
        };
        loop {
            let mut lowest = NONE;
            let mut at = 0;
            for (index, part) in parts.iter().enumerate() {
                if part.pair < lowest {
                    (lowest, at) = (part.pair, index);
                }
            }
            if lowest == NONE {
                break;
            }
            parts.remove(at + 1);
            parts[at].id = lowest;
            parts[at].pair = pair(parts, at);
            if at > 0 {
                parts[at - 1].pair = pair(parts, at - 1);
            }
        }
        parts.pop();
        ids.extend(parts.iter().map(|part| TokenId(part.id)));
    }

    fn by_heap(&mut self, vocabulary: &Vocabulary, piece: &[u8], ids: &mut Vec<TokenId>) {
        let pair = |from: u32, to: u32| rank(vocabulary, &piece[from as usize..to as usize]);
        let len = piece.len() as u32;
        let nodes = &mut self.nodes;
        nodes.clear();
        nodes.extend((0..len).zip(piece).map(|(start, &byte)| Node {
            previous: start.wrapping_sub(1),
            next: start + 1,
            id: vocabulary.single_byte(byte).0,
            pair: if start + 1 < len { pair(start, start + 2) } else { NONE },
        }));
        // Built at once: that is linear.
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.clear();
        entries.extend(
            (0..len)
                .zip(nodes.iter())
                .filter(|(_, node)| node.pair != NONE)
                .map(|(at, node)| entry(node.pair, at)),
        );
        self.heap = BinaryHeap::from(entries);

        while let Some(Reverse(lowest)) = self.heap.pop() {
            let (lowest, at) = ((lowest >> 32) as u32, lowest as u32);
            // Entries are not taken out when their pair goes. A pair of the same rank at the same place is the
            // same bytes, so an old entry cannot be mistaken for another pair.
            let Node { previous, next: absorbed, pair: current, .. } = nodes[at as usize];
            if current != lowest {
                continue;
            }
            let end = nodes[absorbed as usize].next;
            nodes[absorbed as usize].pair = NONE;
            let mut joined = NONE;
            if end < len {
                nodes[end as usize].previous = at;
                joined = pair(at, nodes[end as usize].next);
            }
            nodes[at as usize] = Node { previous, next: end, id: lowest, pair: joined };
            if joined != NONE {
                self.heap.push(entry(joined, at));
            }
            if at > 0 {
                let joined = pair(previous, end);
                nodes[previous as usize].pair = joined;
                if joined != NONE {
                    self.heap.push(entry(joined, previous));
                }
            }
        }
        let mut at = 0;
        while at < len {
            ids.push(TokenId(nodes[at as usize].id));
            at = nodes[at as usize].next;
        }
    }
}

/// The lowest rank comes out of the heap first, and of equal ones the leftmost.
fn entry(pair: u32, at: u32) -> Reverse<u64> {
    Reverse(u64::from(pair) << 32 | u64::from(at))
}

fn rank(vocabulary: &Vocabulary, bytes: &[u8]) -> u32 {
    vocabulary.id(bytes).map_or(NONE, |id| id.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vocabulary::tests::bytes_and;

    /// The definition, word for word.
    fn by_definition(vocabulary: &Vocabulary, piece: &[u8]) -> Vec<TokenId> {
        let mut tokens: Vec<Vec<u8>> = piece.iter().map(|&byte| vec![byte]).collect();
        loop {
            let pairs = tokens.windows(2).enumerate();
            let ranked = pairs.filter_map(|(at, pair)| Some((vocabulary.id(&pair.concat())?, at)));
            let Some((_, at)) = ranked.min() else { break };
            let right = tokens.remove(at + 1);
            tokens[at].extend(right);
        }
        tokens.iter().map(|token| vocabulary.id(token).unwrap()).collect()
    }

    fn by(
        method: fn(&mut Merger, &Vocabulary, &[u8], &mut Vec<TokenId>),
        vocabulary: &Vocabulary,
        piece: &[u8],
    ) -> Vec<TokenId> {
        let mut ids = Vec::new();
        // A merger that has worked on something else before.
        let mut merger = Merger::default();
        method(&mut merger, vocabulary, b"abcabcaabbcc", &mut ids);
        ids.clear();
        method(&mut merger, vocabulary, piece, &mut ids);
        ids
    }

    #[test]
    fn the_lowest_rank_is_merged_first_and_then_the_leftmost() {
        let vocabulary = bytes_and(["bc", "ab", "aa"]);
        for (piece, expected) in [("abc", ["a", "bc"]), ("aaa", ["aa", "a"]), ("aab", ["a", "ab"])] {
            let expected = expected.map(|token| vocabulary.id(token.as_bytes()).unwrap());
            assert_eq!(by(Merger::by_scan, &vocabulary, piece.as_bytes()), expected);
            assert_eq!(by(Merger::by_heap, &vocabulary, piece.as_bytes()), expected);
        }
    }

    #[test]
    fn a_piece_that_is_a_token_is_not_merged() {
        // No two neighbours make this token, so merging could not reach it.
        let vocabulary = bytes_and(["xyz"]);
        let mut ids = Vec::new();
        Merger::default().encode(&vocabulary, b"xyz", &mut ids);
        assert_eq!(ids, [TokenId(256)]);
        assert_eq!(by_definition(&vocabulary, b"xyz").len(), 3);
    }

    proptest! {
        #[test]
        fn both_methods_compute_the_definition(
            tokens in proptest::collection::btree_set("[abc]{2,6}", 0..60),
            shuffle: u64,
            piece in "[abc]{1,200}",
        ) {
            let mut tokens: Vec<String> = tokens.into_iter().collect();
            let mut seeded = kimi_testing::Seeded::new(shuffle);
            for at in (1..tokens.len()).rev() {
                tokens.swap(at, seeded.below(at + 1));
            }
            let vocabulary = bytes_and(&tokens);
            let expected = by_definition(&vocabulary, piece.as_bytes());
            prop_assert_eq!(&by(Merger::by_scan, &vocabulary, piece.as_bytes()), &expected);
            prop_assert_eq!(&by(Merger::by_heap, &vocabulary, piece.as_bytes()), &expected);
        }
    }
}
