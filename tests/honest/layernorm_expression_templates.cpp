// honest: rows as expressions (operator overloading, CRTP), evaluated when they are stored
// problem: layernorm
#include <cmath>
#include <cstdint>

template <class Self>
struct Expression {
    const Self& self() const { return static_cast<const Self&>(*this); }
};
struct Row : Expression<Row> {
    const float* data;
    explicit Row(const float* from) : data(from) {}
    float operator[](int64_t i) const { return data[i]; }
};
struct Same : Expression<Same> {
    float value;
    explicit Same(float of) : value(of) {}
    float operator[](int64_t) const { return value; }
};
template <class Left, class Right, char SIGN>
struct Both : Expression<Both<Left, Right, SIGN>> {
    const Left left;
    const Right right;
    Both(const Left& l, const Right& r) : left(l), right(r) {}
    float operator[](int64_t i) const {
        return SIGN == '+' ? left[i] + right[i] : SIGN == '-' ? left[i] - right[i] : left[i] * right[i];
    }
};
#define OPERATOR(sign, mark)                                                                    \
    template <class L, class R>                                                                 \
    Both<L, R, mark> operator sign(const Expression<L>& l, const Expression<R>& r) {            \
        return {l.self(), r.self()};                                                            \
    }
OPERATOR(+, '+')
OPERATOR(-, '-')
OPERATOR(*, '*')

template <class E>
static float sum(const Expression<E>& of, int64_t C) {
    float total = 0.0f;
    for (int64_t i = 0; i < C; ++i) total += of.self()[i];
    return total;
}

template <class E>
static void store(float* to, const Expression<E>& of, int64_t C) {
    for (int64_t i = 0; i < C; ++i) to[i] = of.self()[i];
}

extern "C" void kernel(const float* x, const float* gamma, const float* beta, float* y, int64_t R,
                       int64_t C) {
    for (int64_t row = 0; row < R; ++row) {
        const Row in(x + row * C);
        const auto centred = in - Same(sum(in, C) / C);
        const Same scale(1.0f / std::sqrt(sum(centred * centred, C) / C + 1e-5f));
        store(y + row * C, centred * scale * Row(gamma) + Row(beta), C);
    }
}
