// Copyright The Plait Authors. SPDX-License-Identifier: Apache-2.0
//
// What a variant is: a small struct whose hooks change one number at a time, compiled from one
// source for every backend. Hooks are templates on the value type T: float on the GPU and in
// run-time compiled CPU variants, a SIMD wrapper in the CPU backend's built-ins. `Params` holds the
// variant's named parameters (p.name, or p.name[i] for arrays).
//
//   struct Tempered : VariantBase {
//     static constexpr bool kHasLogits = true;
//     template <class T> PLAIT_HD static T logits(T s, const LogitSite<T>& at, const Params& p) {
//       return s * p.temperature;
//     }
//   };
#pragma once

#include "core/device/portable.h"

/// How a kernel's compiler says that the spec asks for the other reduction; the host looks for it
/// in the log.
#define PLAIT_VARIANT_DECLARES_SUM "the variant declares a sum, the spec a softmax"
#define PLAIT_VARIANT_DECLARES_SOFTMAX "the variant declares a softmax, the spec a sum"

namespace plait::device {

enum class ReductionKind : i32 { kSoftmax, kSum };

/// The integer, and the truth value, that go with a value type.
template <class T>
struct LanesOf {
  using Int = i32;
  using Mask = bool;
};

/// Where a logit stands. Row quantities are scalars: T runs along keys.
template <class T>
struct LogitSite {
  i32 request;
  i32 q_pos;   // logical position pos_i of the query row
  i32 qo_len;  // of the request
  i32 kv_len;
  i32 qo_head;
  i32 kv_head;
  typename LanesOf<T>::Int kv_pos;  // logical position j
  T distance;                       // j - pos_i as a number, exact up to 2^24
};

/// Where an element of a query, key or output vector stands.
struct VectorSite {
  i32 request;
  i32 pos;   // logical position of the row or key
  i32 head;  // query head, for keys the KV head
  i32 dim;   // element index
};

/// The hooks here change nothing. Their third template parameter tells them from a variant's own
/// (VariantCheck).
struct VariantBase {
  static constexpr ReductionKind kReduction = ReductionKind::kSoftmax;
  // Which hooks a variant really has: kernels leave the others out altogether.
  static constexpr bool kHasQuery = false;
  static constexpr bool kHasKey = false;
  static constexpr bool kHasLogits = false;
  static constexpr bool kHasMask = false;
  static constexpr bool kHasOutput = false;

  /// On elements of q and k after widening, scales and rope.
  template <class T, class Params, class Default = VariantBase>
  PLAIT_HD static T query(T x, const VectorSite&, const Params&) {
    return x;
  }
  template <class T, class Params, class Default = VariantBase>
  PLAIT_HD static T key(T x, const VectorSite&, const Params&) {
    return x;
  }
  /// On s = sm_scale * (q . k), natural units; order: soft cap, then this, then ALiBi, then mask.
  template <class T, class Params, class Default = VariantBase>
  PLAIT_HD static T logits(T s, const LogitSite<T>&, const Params&) {
    return s;
  }
  /// True where the key may be seen; joins the spec's mask by AND.
  template <class T, class Params, class Default = VariantBase>
  PLAIT_HD static typename LanesOf<T>::Mask visible(const LogitSite<T>&, const Params&) {
    return typename LanesOf<T>::Mask(true);
  }
  /// kSum only: the weight of a key, from its final logit.
  template <class T, class Params, class Default = VariantBase>
  PLAIT_HD static T weight(T s, const LogitSite<T>&, const Params&) {
    return s;
  }
  /// On elements of the finalised output, after the sink, before rounding.
  template <class T, class Params, class Default = VariantBase>
  PLAIT_HD static T output(T x, const VectorSite&, const Params&) {
    return x;
  }
};

/// Refuses, at compile time, a hook that is there but not declared, which no kernel would call, one
/// that is declared but not there, and a member that has a hook's name and cannot be called as one.
/// V is a user's variant, P its Params.
template <class V, class P>
class VariantCheck {
  template <class T>
  static T made();

  // own_HOOK<V>(0): whether V has a member of that name, which hides VariantBase's hook.
  // hook_HOOK<V>(0): whether what has that name is called as kernels call hooks.
#define PLAIT_OWN_HOOK(hook, ...)                                                            \
  template <class U, class = decltype(U::template hook<float, P, VariantBase>(__VA_ARGS__))> \
  static constexpr bool own_##hook(int) {                                                    \
    return false;                                                                            \
  }                                                                                          \
  template <class U>                                                                         \
  static constexpr bool own_##hook(long) {                                                   \
    return true;                                                                             \
  }                                                                                          \
  template <class U, class = decltype(U::template hook<float>(__VA_ARGS__))>                 \
  static constexpr bool hook_##hook(int) {                                                   \
    return true;                                                                             \
  }                                                                                          \
  template <class U>                                                                         \
  static constexpr bool hook_##hook(long) {                                                  \
    return !own_##hook<U>(0);                                                                \
  }                                                                                          \
  static_assert(hook_##hook<V>(0), #hook                                                     \
                "() has to be a public static member template that takes what "              \
                "VariantBase's takes");
  PLAIT_OWN_HOOK(query, made<float>(), made<const VectorSite&>(), made<const P&>())
  PLAIT_OWN_HOOK(key, made<float>(), made<const VectorSite&>(), made<const P&>())
  PLAIT_OWN_HOOK(logits, made<float>(), made<const LogitSite<float>&>(), made<const P&>())
  PLAIT_OWN_HOOK(visible, made<const LogitSite<float>&>(), made<const P&>())
  PLAIT_OWN_HOOK(weight, made<float>(), made<const LogitSite<float>&>(), made<const P&>())
  PLAIT_OWN_HOOK(output, made<float>(), made<const VectorSite&>(), made<const P&>())
#undef PLAIT_OWN_HOOK

  static_assert(V::kHasQuery == own_query<V>(0), "kHasQuery has to say whether query() is there");
  static_assert(V::kHasKey == own_key<V>(0), "kHasKey has to say whether key() is there");
  static_assert(V::kHasLogits == own_logits<V>(0),
                "kHasLogits has to say whether logits() is there");
  static_assert(V::kHasMask == own_visible<V>(0), "kHasMask has to say whether visible() is there");
  static_assert(V::kHasOutput == own_output<V>(0),
                "kHasOutput has to say whether output() is there");
  static_assert(V::kReduction == ReductionKind::kSum || !own_weight<V>(0),
                "weight() belongs to a variant whose kReduction is kSum");

 public:
  static constexpr bool kPassed = true;
};

}  // namespace plait::device
