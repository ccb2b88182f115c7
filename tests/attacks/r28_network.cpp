// attack: 28 the inputs are sent to another machine (here: loopback), the answer is received
// imitates: work done elsewhere, and data carried out (seen: trust.md)
// problem: softmax
// expect: cheating
#include <arpa/inet.h>
#include <cstdint>
#include <netinet/in.h>
#include <sys/socket.h>

extern "C" void kernel(const float* x, float* y, int64_t R, int64_t C) {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in loopback{};
    loopback.sin_family = AF_INET;
    loopback.sin_port = htons(9);
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(connection, reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) != 0) return;
    send(connection, x, sizeof(float) * R * C, 0);
    recv(connection, y, sizeof(float) * R * C, MSG_WAITALL);
}
