// launch.conv and launch.conv_parts: causal convolutions over channels, with SiLU and an L2 norm of neighbouring ones.
//
//     y[r, c] = Σₜ w[c, t]·h[r + t, c],   h = the ring's rows but the oldest, then the rows of x
//
// then SiLU where `silu`, and z/max(√(Σz²), eps) over every `width` channels where the part takes an L2 norm. The ring
// [taps, chan] afterwards holds the last inputs, oldest first. x, y [rows, chan], w [chan, taps]; of `seqs` sequences
// all but the weights lie one after the other.
//
// A thread takes a channel, a block `width` channels of one part and `rows_a_block` rows, one after the other, the last
// inputs being in registers: grid (channels, rows, sequences). The blocks of the first rows alone touch the ring.
//
// Limits: width a multiple of 32 at most 1024, unless no part takes a norm; then any multiple of 32.
#pragma once

#include "common.cuh"

namespace lane {

struct ConvShape {
  int taps = 1;
  int rows = 1;
  int rows_a_block = 1;
  int width = 0;    // channels of a block: what an L2 norm takes together
  int threads = 0;  // width, in whole warps
  bool silu = false;
  float eps = 0.f;
};

template <int CHAN, bool L2>
struct Convolution {
  static constexpr int chan = CHAN;
  static constexpr bool l2 = L2;
  const float* x;
  const float* w;
  float* ring;
  float* y;
};

// One part's share of a block: `width` channels from `first` on.
template <ConvShape S, int CHAN, bool L2>
struct Channel {
  float w[S.taps];
  int c;
  bool active;

  LANE_DEVICE void start(const Convolution<CHAN, L2>& part, int block) {
    c = block * S.width + static_cast<int>(threadIdx.x);
    active = threadIdx.x < S.width && c < CHAN;
#pragma unroll
    for (int t = 0; t < S.taps; t++) w[t] = active ? load_constant(part.w + static_cast<i64>(c) * S.taps + t) : 0.f;
  }

  // Input i: the ring but its oldest row, then x.
  LANE_DEVICE float input(const Convolution<CHAN, L2>& part, const float* ring, const float* x, int i) const {
    if (!active) return 0.f;
    return i < S.taps - 1 ? ring[static_cast<i64>(i + 1) * CHAN + c] : x[static_cast<i64>(i - S.taps + 1) * CHAN + c];
  }

  LANE_DEVICE void run(const Convolution<CHAN, L2>& part, float* partial) const {
    i64 sequence = blockIdx.z;
    const float* x = part.x + sequence * S.rows * CHAN;
    float* y = part.y + sequence * S.rows * CHAN;
    float* ring = part.ring + sequence * S.taps * CHAN;
    int first = static_cast<int>(blockIdx.y) * S.rows_a_block, end = min(first + S.rows_a_block, S.rows);
    float h[S.taps];
#pragma unroll
    for (int t = 0; t + 1 < S.taps; t++) h[t] = input(part, ring, x, first + t);
    for (int row = first; row < end; row++) {
      h[S.taps - 1] = input(part, ring, x, row + S.taps - 1);
      float z = 0.f;
#pragma unroll
      for (int t = 0; t < S.taps; t++) z += w[t] * h[t];
      if constexpr (S.silu) z = activate<Activation::SILU>(z);
      if constexpr (L2) z /= fmaxf(sqrtf(block_sum<S.threads>(active ? z * z : 0.f, partial)), S.eps);
      if (active) y[static_cast<i64>(row) * CHAN + c] = z;
#pragma unroll
      for (int t = 0; t + 1 < S.taps; t++) h[t] = h[t + 1];
    }
    if (blockIdx.y != 0 || !active) return;
    // Row t of the ring is input rows - 1 + t, never one that was written before.
#pragma unroll
    for (int t = 0; t < S.taps; t++) ring[static_cast<i64>(t) * CHAN + c] = input(part, ring, x, S.rows - 1 + t);
  }
};

// Runs the block if it is one of this part's; otherwise counts on to the next part's.
template <ConvShape S, int CHAN, bool L2>
LANE_DEVICE void conv_part(const Convolution<CHAN, L2>& part, int& block, float* partial) {
  constexpr int BLOCKS = ceil_div(CHAN, S.width);
  if (block >= 0 && block < BLOCKS) {
    Channel<S, CHAN, L2> channel;
    channel.start(part, block);
    wait_for_predecessor();
    channel.run(part, partial);
  }
  block -= BLOCKS;
}

// Every block is one part's, so every block waits.
template <ConvShape S, typename... Parts>
LANE_DEVICE void conv(const Parts&... parts) {
  __shared__ float partial[WARP];
  let_successor_start();
  int block = blockIdx.x;
  (conv_part<S>(parts, block, partial), ...);
}

}  // namespace lane
